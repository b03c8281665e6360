// The weights of a convolution pass in the order in which conv.cpp uses them, and values to and from that order.
#include "declare.h"
#include "parallel.h"
#include "simd.h"

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

}  // namespace

// Fours that the pass needs; fills starts and order.
int64_t conv_count(ConvPattern p, int64_t channels, int64_t block, int32_t* starts, int32_t* order) {
  const int64_t blocks = (channels + block - 1) / block, n = blocks * p.rows;
  int32_t* count = new int32_t[n + 1]();
  entries(p, [&](int64_t r, int64_t c, int64_t t, int64_t) { count[c / block * p.rows + r] += p.taps_at[t] >= 0; });
  int64_t most = 0;
  for (int64_t k = 0; k < n; k++) {
    count[k] = (count[k] + 3) / 4;
    most = count[k] > most ? count[k] : most;
  }
  int64_t* first = new int64_t[most + 2];
  int64_t fours = 0;
  for (int64_t b = 0; b < blocks; b++) {  // rows by length: a counting sort
    memset(first, 0, (most + 2) * sizeof(int64_t));
    for (int64_t r = 0; r < p.rows; r++) first[count[b * p.rows + r] + 1]++;
    for (int64_t l = 0; l <= most; l++) first[l + 1] += first[l];
    for (int64_t r = 0; r < p.rows; r++) order[b * p.rows + first[count[b * p.rows + r]]++] = r;
    for (int64_t k = 0; k < p.rows; k++) {
      starts[b * p.rows + k] = fours;
      fours += count[b * p.rows + order[b * p.rows + k]];
    }
  }
  starts[n] = fours;
  delete[] first;
  delete[] count;
  return fours;
}

// offsets: bytes; index: the packed position of each weight, -1 where a four is filled up.
void conv_fill(ConvPattern p, int64_t channels, int64_t block, int64_t channel_bytes, const int32_t* starts,
               const int32_t* order, uint32_t* offsets, int32_t* index) {
  const int64_t blocks = (channels + block - 1) / block, n = blocks * p.rows, fours = starts[n];
  int64_t* next = new int64_t[n + 1];
  for (int64_t k = 0; k < n; k++) next[k / p.rows * p.rows + order[k]] = 4 * int64_t(starts[k]);
  for (int64_t i = 0; i < 4 * fours; i++) offsets[i] = 0, index[i] = -1;
  entries(p, [&](int64_t r, int64_t c, int64_t t, int64_t position) {
    if (p.taps_at[t] < 0) return;
    const int64_t at = next[c / block * p.rows + r]++;
    offsets[at] = uint32_t(c * channel_bytes + p.taps_at[t]);
    index[at] = position;
  });
  delete[] next;
}

void conv_gather(const float* values, const int32_t* index, int64_t n, float* out, int threads) {
  constexpr int64_t CHUNK = 1 << 15;
  parallel_for((n + CHUNK - 1) / CHUNK, threads, [&](int64_t c) {
    for (int64_t i = c * CHUNK; i < n && i < (c + 1) * CHUNK; i++) out[i] = index[i] < 0 ? 0.0f : values[index[i]];
  });
}

void conv_scatter(const float* from, const int32_t* index, int64_t n, float* values, int threads) {
  constexpr int64_t CHUNK = 1 << 15;
  parallel_for((n + CHUNK - 1) / CHUNK, threads, [&](int64_t c) {
    for (int64_t i = c * CHUNK; i < n && i < (c + 1) * CHUNK; i++)
      if (index[i] >= 0) values[index[i]] = from[i];
  });
}

}  // namespace SPARSE_ISA
