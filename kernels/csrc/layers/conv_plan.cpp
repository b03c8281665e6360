// The weights of a convolution pass in the order in which conv.cpp uses them.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

// Where the visits of a pass are (conv.h): group of rows, block of channels, row.
struct Visits {
  int64_t rows, blocks, block, group;
  Visits(const ConvPattern& p, int64_t channels, int64_t block, int64_t group)
      : rows(p.rows), blocks((channels + block - 1) / block), block(block), group(group) {}
  int64_t size(int64_t row) const {  // rows of its group
    const int64_t left = rows - row / group * group;
    return left < group ? left : group;
  }
  int64_t of(int64_t row, int64_t b) const { return row / group * group * blocks + b * size(row) + row % group; }
};

// The first of the ascending indices lo to hi that is at least `least`: mostly near, where there are many visits.
static inline int32_t find(const int32_t* indices, int32_t lo, int32_t hi, int64_t least) {
  for (const int32_t near = hi - lo < 8 ? hi : lo + 8; lo < near; lo++)
    if (indices[lo] >= least) return lo;
  while (lo < hi) {
    const int32_t middle = lo + (hi - lo) / 2;
    if (indices[middle] < least)
      lo = middle + 1;
    else
      hi = middle;
  }
  return lo;
}

// Calls use(visit, tap, first, last) for runs of indices that one visit has; tap: of all of them, when transposed.
template <typename Use> void runs(const ConvPattern& p, const Visits& visits, Use use) {
  const int64_t taps = p.transposed ? p.taps : 1, width = visits.block * (p.transposed ? 1 : p.taps);
  for (int64_t r = 0; r < p.rows; r++) {
    const int64_t visit = visits.of(r, 0), size = visits.size(r);
    for (int64_t t = 0; t < taps; t++) {
      if (p.transposed && p.taps_at[t] < 0) continue;
      int32_t i = p.pointers[r * taps + t];
      const int32_t end = p.pointers[r * taps + t + 1];
      for (int64_t b = 0; i < end; b++) {
        const int32_t last = b + 1 < visits.blocks ? find(p.indices, i, end, (b + 1) * width) : end;
        if (i < last) use(visit + b * size, t, i, last);
        i = last;
      }
    }
  }
}

}  // namespace

// Weights of the pass; fills starts and order.
int64_t conv_count(ConvPattern p, int64_t channels, int64_t block, int64_t group, int32_t* starts, int32_t* order) {
  const Visits visits(p, channels, block, group);
  const int64_t n = visits.blocks * p.rows;
  const Scratch<int32_t> count(n + 1, "the number of weights of each visit of a convolution");
  memset(count, 0, (n + 1) * sizeof(int32_t));
  runs(p, visits, [&](int64_t visit, int64_t, int32_t first, int32_t last) { count[visit] += last - first; });
  int64_t most = 0, total = 0;
  for (int64_t k = 0; k < n; k++) most = count[k] > most ? count[k] : most;
  const Scratch<int64_t> first(most + 2, "the order of the rows of a convolution");
  for (int64_t row = 0; row < p.rows; row += group) {
    const int64_t size = visits.size(row);
    for (int64_t b = 0; b < visits.blocks; b++) {  // rows by length: a counting sort
      const int64_t start = visits.of(row, b);
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
      for (int64_t k = visits.of(row, b), end = k + visits.size(row); k < end; k++)
        next[visits.of(order[k], b)] = starts[k];
  const int64_t taps = p.transposed ? 1 : p.taps;
  const Scratch<uint32_t> bytes(channels * taps, "the offsets of a convolution's weights");  // by index
  for (int64_t c = 0; c < channels; c++)
    for (int64_t t = 0; t < taps; t++) bytes[c * taps + t] = c * channel_bytes + (p.transposed ? 0 : p.taps_at[t]);
  runs(p, visits, [&](int64_t visit, int64_t t, int32_t first, int32_t last) {
    const uint32_t tap = p.transposed ? p.taps_at[t] : 0;
    const uint32_t* of = bytes;
    uint32_t* to = offsets + next[visit];
    int32_t* from = index + next[visit];
    const int32_t *indices = p.indices + first, n = last - first;
    next[visit] += n;
    for (int32_t i = 0; i < n; i++) to[i] = of[indices[i]] + tap;
    if (p.transposed)
      for (int32_t i = 0; i < n; i++) from[i] = p.positions[first + i];
    else
      for (int32_t i = 0; i < n; i++) from[i] = first + i;
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
