// Copies a batch-last tensor into planes with a zero border (conv.h), so that a weight is one constant offset.
#include <unistd.h>

#include "layers/conv_tiles.h"

namespace SPARSE_ISA {
namespace {

template <typename T> void fill_planes(const ConvPlanes& p, const T* x, T* out, int threads) {
  parallel_for(p.chunks * p.channels, threads, [&](int64_t i) {
    const int64_t n0 = i / p.channels * p.lanes, n = p.batch - n0 < p.lanes ? p.batch - n0 : p.lanes;
    const T* from = x + i % p.channels * p.height * p.width * p.batch + n0;
    T* to = out + i * p.phases * p.phases * p.plane_size;
    for (int64_t a = 0; a < p.phases; a++)
      for (int64_t b = 0; b < p.phases; b++, to += p.plane_size) {
        T* row = to;
        for (int64_t r = 0; r < p.rows; r++, row += p.columns * p.lanes) {
          const int64_t h = (r - p.top) * p.stride + a;
          const int64_t first = p.left;  // columns before it and from last on are border
          int64_t last = first + (p.width - b + p.stride - 1) / p.stride;
          last = last < p.columns ? last : p.columns;
          if (r < p.top || h >= p.height || last <= first) {
            clear(row, p.columns * p.lanes);
            continue;
          }
          clear(row, first * p.lanes);
          const T* line = from + (h * p.width + b) * p.batch;
          if (p.stride == 1 && n == p.lanes && p.batch == p.lanes) {
            copy(row + first * p.lanes, line, (last - first) * p.lanes);
          } else {
            for (int64_t c = first; c < last; c++, line += p.stride * p.batch) {
              if (n < p.lanes) clear(row + c * p.lanes, p.lanes);  // whole vectors: faster than what is left
              copy(row + c * p.lanes, line, n);
            }
          }
          clear(row + last * p.lanes, (p.columns - last) * p.lanes);
        }
        clear(row, p.plane_size - p.rows * p.columns * p.lanes);
      }
  });
}

}  // namespace

int conv_tile() { return TILE; }

// Of the sparse kernels where there is a halo. 16 vectors of 16 lanes take 2.5 KB of input a channel, 8 take 1.5 to 2:
// with an L1 of 32 KB (Zen 4, Skylake) that decides, with 48 (Zen 5, Ice Lake and later) the longer work per weight.
int conv_halo_tile() {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  static const bool small = sysconf(_SC_LEVEL1_DCACHE_SIZE) == 32 << 10;
#else
  constexpr bool small = false;
#endif
  return W == 16 && small ? TILE / 2 : TILE;
}

int conv_vector() { return W; }

// Rows of a group: their sums stay in L2, beside the input of all blocks where there is room for both.
int conv_group() { return (W == 16 ? 512 : 128) * 1024 / (4 * TILE); }

void conv_planes(ConvPlanes p, const float* x, float* out, int threads) { fill_planes(p, x, out, threads); }

void conv_planes_bf16(ConvPlanes p, const bf16* x, bf16* out, int threads) { fill_planes(p, x, out, threads); }

}  // namespace SPARSE_ISA
