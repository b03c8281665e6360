// The weights of a convolution pass in the order in which conv.cpp uses them.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

// Calls use(row, channel, tap, packed position) for every weight, rows ascending, channels ascending within a row (and
// tap).
template <typename Use> void entries(const ConvPattern& p, Use use) {
  if (!p.transposed) {
    for (int64_t r = 0; r < p.rows; r++)
      for (int32_t i = p.pointers[r]; i < p.pointers[r + 1]; i++) {
        const int32_t channel = p.indices[i] / p.taps;
        use(r, channel, p.indices[i] - channel * p.taps, i);
      }
  } else {
    for (int64_t r = 0; r < p.rows; r++)
      for (int64_t t = 0; t < p.taps; t++)
        for (int32_t i = p.pointers[r * p.taps + t]; i < p.pointers[r * p.taps + t + 1]; i++)
          use(r, p.indices[i], t, p.positions[i]);
  }
}

// Where the visits of a pass are (conv.h): group of rows, block of channels, row.
struct Visits {
  int64_t rows, blocks, block, group;
  Visits(const ConvPattern& p, int64_t channels, int64_t block, int64_t group)
      : rows(p.rows), blocks((channels + block - 1) / block), block(block), group(group) {}
  int64_t size(int64_t row) const {  // rows of its group
    const int64_t left = rows - row / group * group;
    return left < group ? left : group;
  }
  int64_t of(int64_t row, int64_t channel) const {
    return row / group * group * blocks + channel / block * size(row) + row % group;
  }
};

}  // namespace

// Weights of the pass; fills starts and order.
int64_t conv_count(ConvPattern p, int64_t channels, int64_t block, int64_t group, int32_t* starts, int32_t* order) {
  const Visits visits(p, channels, block, group);
  const int64_t n = visits.blocks * p.rows;
  const Scratch<int32_t> count(n + 1, "the number of weights of each visit of a convolution");
  memset(count, 0, (n + 1) * sizeof(int32_t));
  entries(p, [&](int64_t r, int64_t c, int64_t t, int64_t) { count[visits.of(r, c)] += p.taps_at[t] >= 0; });
  int64_t most = 0, total = 0;
  for (int64_t k = 0; k < n; k++) most = count[k] > most ? count[k] : most;
  const Scratch<int64_t> first(most + 2, "the order of the rows of a convolution");
  for (int64_t row = 0; row < p.rows; row += group) {
    const int64_t size = visits.size(row);
    for (int64_t b = 0; b < visits.blocks; b++) {  // rows by length: a counting sort
      const int64_t start = visits.of(row, b * block);
      memset(first, 0, (most + 2) * sizeof(int64_t));
      for (int64_t k = 0; k < size; k++) first[count[start + k] + 1]++;
      for (int64_t l = 0; l <= most; l++) first[l + 1] += first[l];
      for (int64_t k = 0; k < size; k++) order[start + first[count[start + k]]++] = row + k;
      for (int64_t k = 0; k < size; k++) {
        starts[start + k] = total;
        total += count[start + order[start + k] - row];
      }
    }
  }
  starts[n] = total;
  return total;
}

// offsets: bytes; index: the packed position of each weight.
void conv_fill(ConvPattern p, int64_t channels, int64_t block, int64_t group, int64_t channel_bytes,
               const int32_t* starts, const int32_t* order, uint32_t* offsets, int32_t* index) {
  const Visits visits(p, channels, block, group);
  const int64_t n = visits.blocks * p.rows;
  const Scratch<int64_t> next(n + 1, "the places of the weights of a convolution");
  for (int64_t row = 0; row < p.rows; row += group)
    for (int64_t b = 0; b < visits.blocks; b++)
      for (int64_t k = visits.of(row, b * block), end = k + visits.size(row); k < end; k++)
        next[visits.of(order[k], b * block)] = starts[k];
  entries(p, [&](int64_t r, int64_t c, int64_t t, int64_t position) {
    if (p.taps_at[t] < 0) return;
    const int64_t at = next[visits.of(r, c)]++;
    offsets[at] = uint32_t(c * channel_bytes + p.taps_at[t]);
    index[at] = position;
  });
}

// out[i] = values[index[i]], 0 where the index is negative.
void conv_gather(const float* values, const int32_t* index, int64_t n, float* out, int threads) {
  constexpr int64_t CHUNK = 1 << 15;
  parallel_for((n + CHUNK - 1) / CHUNK, threads, [&](int64_t c) {
    for (int64_t i = c * CHUNK; i < n && i < (c + 1) * CHUNK; i++) out[i] = index[i] < 0 ? 0.0f : values[index[i]];
  });
}

}  // namespace SPARSE_ISA
