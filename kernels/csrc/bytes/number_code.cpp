// Numbers of 1, 2 or 4 bytes whose leading byte takes few values: rANS for that byte, the others as they are
// (kernels/number_code says where everything lies). Blocks stand alone, so that each has frequencies of its own.
#include "bytes/rans.h"
#include "core/ops.h"
#include "core/scratch.h"

namespace SPARSE_ISA {
namespace {

constexpr int SCALE = 12;
constexpr int64_t BLOCK = 1 << 16;
constexpr uint32_t TOTAL = 1 << SCALE;

int64_t shorter(int64_t a, int64_t b) { return a < b ? a : b; }

// Rotated by one bit, so that the exponent comes before the sign, and cut into the leading byte and the others.
template <typename T> void split(const uint8_t* in, int64_t n, uint8_t* lead, uint8_t* low) {
  constexpr int bits = 8 * sizeof(T);
  for (int64_t i = 0; i < n; i++) {
    T x;
    memcpy(&x, in + i * sizeof(T), sizeof(T));
    x = T(x << 1 | x >> (bits - 1));
    lead[i] = uint8_t(x >> (bits - 8));
    memcpy(low + i * (sizeof(T) - 1), &x, sizeof(T) - 1);
  }
}

// Reads one byte after `low`, which is there: counts follow.
template <typename T> void join(const uint8_t* lead, const uint8_t* low, int64_t n, uint8_t* out) {
  constexpr int bits = 8 * sizeof(T);
  for (int64_t i = 0; i < n; i++) {
    T x;
    memcpy(&x, low + i * (sizeof(T) - 1), sizeof(T));
    x = T((x & ((1ull << (bits - 8)) - 1)) | T(lead[i]) << (bits - 8));
    x = T(x >> 1 | x << (bits - 1));
    memcpy(out + i * sizeof(T), &x, sizeof(T));
  }
}

void count(const uint8_t* p, int64_t n, uint32_t counts[256]) {
  uint32_t part[4][256] = {};  // a byte often follows itself: four counters wait less for one another
  for (int64_t i = 0; i < n; i++) part[i % 4][p[i]]++;
  for (int b = 0; b < 256; b++) counts[b] = part[0][b] + part[1][b] + part[2][b] + part[3][b];
}

// f = 1 + floor(count (TOTAL - distinct) / n) for every byte that occurs; the most frequent one takes what is left.
struct Model {
  uint32_t f[256] = {}, start[256] = {};

  Model(const uint32_t counts[256], int64_t n) {
    uint64_t distinct = 0, sum = 0;
    int most = 0;
    for (int b = 0; b < 256; b++) {
      distinct += counts[b] > 0;
      if (counts[b] > counts[most]) most = b;
    }
    for (int b = 0; b < 256; b++)
      if (counts[b]) sum += f[b] = uint32_t(1 + counts[b] * (TOTAL - distinct) / n);
    f[most] += uint32_t(TOTAL - sum);
    for (uint32_t b = 0, at = 0; b < 256; at += f[b++]) start[b] = at;
  }
};

// Writes how often each byte occurs: their number - 1, the bytes, their counts - 1. Null: no room.
uint8_t* write_counts(const uint32_t counts[256], uint8_t* out, const uint8_t* end) {
  int distinct = 0;
  for (int b = 0; b < 256; b++) distinct += counts[b] > 0;
  if (end - out < 1 + 3 * distinct) return nullptr;
  *out = uint8_t(distinct - 1);
  for (int b = 0, i = 0; b < 256; b++) {
    if (!counts[b]) continue;
    const uint16_t less = uint16_t(counts[b] - 1);
    out[1 + i] = uint8_t(b);
    memcpy(out + 1 + distinct + 2 * i++, &less, 2);
  }
  return out + 1 + 3 * distinct;
}

// Null: not the counts of n bytes.
const uint8_t* read_counts(const uint8_t* in, const uint8_t* end, int64_t n, uint32_t counts[256]) {
  if (end - in < 1) return nullptr;
  const int distinct = *in + 1;
  if (end - in < 1 + 3 * distinct) return nullptr;
  memset(counts, 0, 256 * sizeof(uint32_t));
  int64_t sum = 0;
  for (int i = 0; i < distinct; i++) {
    uint16_t less;
    memcpy(&less, in + 1 + distinct + 2 * i, 2);
    if (i && in[1 + i] <= in[i]) return nullptr;
    sum += counts[in[1 + i]] = uint32_t(less) + 1;
  }
  return sum == n ? in + 1 + 3 * distinct : nullptr;
}

// The code of n bytes, after their counts; null: no room.
uint8_t* encode(const uint8_t* p, int64_t n, uint8_t* out, uint8_t* end, uint8_t* scratch, int64_t room) {
  uint32_t counts[256];
  count(p, n, counts);
  out = write_counts(counts, out, end);
  if (!out || counts[p[0]] == n) return out;
  const Model model(counts, n);
  Symbol table[256];
  for (int b = 0; b < 256; b++)
    if (counts[b]) table[b].set(model.f[b], model.start[b], SCALE);
  Encoder encoder{scratch + room, scratch};
  encoder.bytes(p, n, table);
  encoder.finish();
  const int64_t size = scratch + room - encoder.at;
  if (encoder.full || end - out < size) return nullptr;
  memcpy(out, encoder.at, size);
  return out + size;
}

const uint8_t* decode(const uint8_t* in, const uint8_t* end, int64_t n, uint8_t* p) {
  uint32_t counts[256], found[256], table[TOTAL];  // slot -> byte, f, slot - start
  in = read_counts(in, end, n, counts);
  if (!in) return nullptr;
  const Model model(counts, n);
  for (uint32_t b = 0; b < 256; b++) {
    if (counts[b] == n) return memset(p, int(b), n), in;
    for (uint32_t i = 0; i < model.f[b]; i++) table[model.start[b] + i] = b << 24 | model.f[b] << 12 | i;
  }
  Decoder decoder(in, end - in);
  decoder.bytes(p, n, [&](uint64_t& state) {
    const uint32_t entry = table[state & (TOTAL - 1)];
    state = (entry >> 12 & (TOTAL - 1)) * (state >> SCALE) + (entry & (TOTAL - 1));
    return uint8_t(entry >> 24);
  });
  count(p, n, found);
  return decoder.finished() && !memcmp(found, counts, sizeof counts) ? decoder.at : nullptr;
}

}  // namespace

int64_t number_encode(const uint8_t* in, int64_t n, int width, uint8_t* out, int64_t capacity) {
  constexpr int64_t room = 2 * BLOCK + 16 * LANES;
  const Scratch<uint8_t> lead(BLOCK + room, "a block of numbers to encode");
  uint8_t *const end = out + capacity, *low = out;
  uint8_t* at = n * (width - 1) <= capacity ? out + n * (width - 1) : nullptr;
  for (int64_t i = 0; at && i < n; i += BLOCK) {
    const int64_t m = shorter(BLOCK, n - i);
    (width == 4 ? split<uint32_t> : width == 2 ? split<uint16_t> : split<uint8_t>)(in + i * width, m, lead, low);
    low += m * (width - 1);
    at = encode(lead, m, at, end, lead + BLOCK, room);
  }
  return at ? at - out : -1;
}

bool number_decode(const uint8_t* in, int64_t size, int64_t n, int width, uint8_t* out) {
  const uint8_t *const end = in + size, *low = in, *at = n * (width - 1) <= size ? in + n * (width - 1) : nullptr;
  const Scratch<uint8_t> lead(BLOCK, "a block of numbers to decode");
  for (int64_t i = 0; at && i < n; i += BLOCK) {
    const int64_t m = shorter(BLOCK, n - i);
    at = decode(at, end, m, lead);
    if (at) (width == 4 ? join<uint32_t> : width == 2 ? join<uint16_t> : join<uint8_t>)(lead, low, m, out + i * width);
    low += m * (width - 1);
  }
  return at == end;
}

}  // namespace SPARSE_ISA
