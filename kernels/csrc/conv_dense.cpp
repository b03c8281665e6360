// Convolution with a full weight, in the same tiles and planes as the sparse one: for layers that masks leave dense (or
// nearly so), without a change of layout. Three output channels share the loads of an input: 12 multiply-adds for 4
// vectors of input and 3 weights, so the loads no longer bind. (For the weight gradient that was tried and lost: three
// rows of four sums each cost more than they saved, 52 against 60 GFLOP/s, so full weights take the sparse kernel
// there.)
#include "conv_tiles.h"

namespace SPARSE_ISA {
namespace {

constexpr int ROWS = 3, HALF = R / 2;

// sums [ROWS][TILE] += weights [n][ROWS] times the inputs at n offsets.
void accumulate(const float* x, const uint32_t* offsets, int64_t n, const float* weights, float* sums) {
  for (int half = 0; half < TILE; half += HALF * W) {
    vf sum[ROWS][HALF];
    SPARSE_UNROLL
    for (int k = 0; k < ROWS; k++) SPARSE_UNROLL
    for (int r = 0; r < HALF; r++) sum[k][r] = load(sums + k * TILE + half + r * W);
    const char* from = reinterpret_cast<const char*>(x + half);
    const float* w = weights;
    for (int64_t t = 0; t < n; t++, w += ROWS) {
      const float* p = reinterpret_cast<const float*>(from + offsets[t]);
      const vf w0 = splat(w[0]), w1 = splat(w[1]), w2 = splat(w[2]);
      SPARSE_UNROLL
      for (int r = 0; r < HALF; r++) {
        const vf v = load(p + r * W);
        sum[0][r] += w0 * v;
        sum[1][r] += w1 * v;
        sum[2][r] += w2 * v;
      }
    }
    SPARSE_UNROLL
    for (int k = 0; k < ROWS; k++) SPARSE_UNROLL
    for (int r = 0; r < HALF; r++) store(sums + k * TILE + half + r * W, sum[k][r]);
  }
}

}  // namespace

void conv_dense_apply(ConvPlanes planes, ConvDense w, ConvOutput out, const float* x, const float* weights,
                      const float* bias, float* y, int threads) {
  apply_tiles(planes, out, w.rows, x, bias, y, threads, [&](const float* from, float* sums) {
    for (int64_t t = 0; t < w.taps; t += w.block)
      for (int64_t o = 0; o < w.rows; o += ROWS)
        accumulate(from, w.offsets + t, smaller(w.block, w.taps - t), weights + o * w.taps + t * ROWS, sums + o * TILE);
  });
}

}  // namespace SPARSE_ISA
