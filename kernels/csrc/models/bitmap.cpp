// Bitmaps: counting, to and from bool, rows (CSR) and columns (transpose) of a matrix.
//
// Column c of a matrix needs the bits of all rows at c: blocks of 64 rows x 64 columns are transposed as bits. The
// packed position of an entry is a cursor of its row, and the cursors of W rows are one vector: for W rows of a column
// the entries' rows and positions are two compressions, and the cursors advance by the bits.
#include "core/ops.h"
#include "core/scratch.h"
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

// The n <= 64 bits from bit position `at` on. Reads no word beyond the one that holds the last of them.
uint64_t bits_at(const uint64_t* words, int64_t at, int n) {
  const int shift = at & 63;
  uint64_t x = words[at >> 6] >> shift;
  if (shift && n > 64 - shift) x |= words[(at >> 6) + 1] << (64 - shift);
  return x & low_bits(n);
}

// a[i] bit j <-> a[j] bit i: swap ever smaller off-diagonal blocks.
void transpose_bits(uint64_t a[64]) {
  uint64_t mask = 0x00000000ffffffffull;
  for (int size = 32; size; size >>= 1, mask ^= mask << size)
    for (int i = 0; i < 64; i = ((i | size) + 1) & ~size) {
      const uint64_t swap = (a[i] >> size ^ a[i | size]) & mask;
      a[i | size] ^= swap;
      a[i] ^= swap << size;
    }
}

}  // namespace

bool bitmap_count(const uint64_t* words, Segments segments, int64_t* offsets) {
  int64_t n = offsets[0] = 0;
  bool clean = true;  // no bit after the end of a tensor
  for (int64_t l = 0; l < segments.count; l++) {
    const int64_t end = segments.starts[l + 1], over = (segments.dense[l + 1] - segments.dense[l]) & 63;
    for (int64_t i = segments.starts[l]; i < end; i++) n += popcount(words[i]);
    offsets[l + 1] = n;
    clean &= !over || !(words[end - 1] >> over);
  }
  return clean;
}

void bitmap_from_mask(const uint8_t* mask, Segments segments, uint64_t* words) {
  for (int64_t l = 0; l < segments.count; l++) {
    const uint8_t *m = mask + segments.dense[l], *end = mask + segments.dense[l + 1];
    for (int64_t i = segments.starts[l]; i < segments.starts[l + 1]; i++, m += 64) {
      uint8_t bytes[64] = {};
      memcpy(bytes, m, end - m < 64 ? end - m : 64);
      uint64_t word = 0;
      for (int b = 0; b < 8; b++) {  // 8 bytes of 0 or 1: the product collects them in its top byte
        uint64_t eight;
        memcpy(&eight, bytes + 8 * b, 8);
        word |= (eight * 0x0102040810204080ull >> 56) << (8 * b);
      }
      words[i] = word;
    }
  }
}

void bitmap_to_mask(const uint64_t* words, Segments segments, uint8_t* mask) {
  for (int64_t l = 0; l < segments.count; l++) {
    uint8_t *m = mask + segments.dense[l], *end = mask + segments.dense[l + 1];
    for (int64_t i = segments.starts[l]; i < segments.starts[l + 1]; i++, m += 64) {
      uint8_t bytes[64];
      for (int j = 0; j < 64; j++) bytes[j] = words[i] >> j & 1;
      memcpy(m, bytes, end - m < 64 ? end - m : 64);
    }
  }
}

void bitmap_csr(const uint64_t* words, int64_t rows, int64_t cols, int32_t* pointers, int32_t* columns, int64_t nnz) {
  int32_t *out = columns, *end = columns + nnz;
  pointers[0] = 0;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < cols; c += 64) {
      uint64_t m = bits_at(words, r * cols + c, cols - c < 64 ? cols - c : 64);
      for (vi index = iota() + int32_t(c); m; m >>= W, index += W) {
        const uint32_t bits = m & ALL;
        store_until(out, compress(index, bits), end);
        out += popcount(bits);
      }
    }
    pointers[r + 1] = out - columns;
  }
}

void bitmap_transpose(const uint64_t* words, int64_t rows, int64_t cols, int32_t* pointers, int32_t* row,
                      int32_t* order, int64_t nnz) {
  const int64_t blocks = (rows + 63) / 64;
  const Scratch<int32_t> cursor(blocks * 64, "the rows of a transposed pattern");  // packed position of the next entry
  const Scratch<uint64_t> columns(blocks * 64, "64 columns of a transposed pattern");  // [row block][column]
  memset(cursor, 0, blocks * 64 * sizeof(int32_t));
  int64_t at = 0;
  for (int64_t r = 0, n = 0; r < rows; r++) {
    cursor[r] = n;
    for (int64_t c = 0; c < cols; c += 64) n += popcount(bits_at(words, r * cols + c, cols - c < 64 ? cols - c : 64));
  }
  pointers[0] = 0;
  for (int64_t c0 = 0; c0 < cols; c0 += 64) {
    const int width = cols - c0 < 64 ? cols - c0 : 64;
    for (int64_t r = 0; r < blocks * 64; r++) columns[r] = r < rows ? bits_at(words, r * cols + c0, width) : 0;
    for (int64_t b = 0; b < blocks; b++) transpose_bits(columns + b * 64);
    for (int c = 0; c < width; c++) {
      for (int64_t b = 0; b < blocks; b++) {
        uint64_t m = columns[b * 64 + c];
        vi index = iota() + int32_t(b * 64);
        for (int32_t* next = cursor + b * 64; m; m >>= W, index += W, next += W) {
          const uint32_t bits = m & ALL;
          const vi position = load(next);
          store_until(row + at, compress(index, bits), row + nnz);
          store_until(order + at, compress(position, bits), order + nnz);
          store(next, position - lanes_of(bits));
          at += popcount(bits);
        }
      }
      pointers[c0 + c + 1] = at;
    }
  }
}

}  // namespace SPARSE_ISA
