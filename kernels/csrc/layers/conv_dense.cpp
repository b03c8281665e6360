// Convolution with a full weight, in the same tiles and planes as the sparse one: for layers that masks leave dense (or
// nearly so), without a change of layout. Three output channels share the loads of an input: 12 multiply-adds for 4
// vectors of input and 3 weights, so the loads no longer bind. The weight gradient takes 3 channels and 4 taps at a
// time over up to 4 tiles of a row, so that the sums over lanes cost little.
#include "layers/conv_tiles.h"

namespace SPARSE_ISA {
namespace {

constexpr int ROWS = 3, HALF = R / 2, TAPS = 4;

// sums [ROWS][TILE] += weights [n][ROWS] times the inputs at n offsets; of a tile, the first `used` floats.
void accumulate(const float* x, const uint32_t* offsets, int64_t n, const float* weights, int used, float* sums) {
  for (int half = 0; half < used; half += HALF * W) {
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

// to[k][t] += dy, row k (rows are `run` floats), times the input at offset t, for t < TAPS.
void correlate(const float* x, const uint32_t* offsets, const float* dy, int64_t run, float* const (&to)[ROWS]) {
  const char* from = reinterpret_cast<const char*>(x);
  const float *p0 = reinterpret_cast<const float*>(from + offsets[0]),
              *p1 = reinterpret_cast<const float*>(from + offsets[1]),
              *p2 = reinterpret_cast<const float*>(from + offsets[2]),
              *p3 = reinterpret_cast<const float*>(from + offsets[3]);
  vf a[TAPS] = {}, b[TAPS] = {}, c[TAPS] = {};
  for (int64_t r = 0; r < run; r += W) {
    const vf v[TAPS] = {load(p0 + r), load(p1 + r), load(p2 + r), load(p3 + r)};
    const vf d0 = load(dy + r), d1 = load(dy + run + r), d2 = load(dy + 2 * run + r);
    SPARSE_UNROLL
    for (int t = 0; t < TAPS; t++) {
      a[t] += d0 * v[t];
      b[t] += d1 * v[t];
      c[t] += d2 * v[t];
    }
  }
  add_sums(to[0], a);
  add_sums(to[1], b);
  add_sums(to[2], c);
}

}  // namespace

void conv_dense_apply(ConvPlanes planes, ConvDense w, ConvOutput out, const float* x, const float* weights,
                      const float* bias, float* y, int threads) {
  const int used = Tiles(planes, out).vectors() * W;
  apply_tiles(planes, out, w.rows, x, bias, y, threads, [&](const float* from, float* sums) {
    for (int64_t t = 0; t < w.taps; t += w.block)
      for (int64_t o = 0; o < w.rows; o += ROWS)
        accumulate(from, w.offsets + t, smaller(w.block, w.taps - t), weights + o * w.taps + t * ROWS, used,
                   sums + o * TILE);
  });
}

// gradients: [rows][taps]. tiles: of a row, that are taken together; they divide its tiles.
void conv_dense_gradient(ConvPlanes planes, ConvDense w, ConvOutput out, int64_t tiles, const float* x, const float* dy,
                         float* gradients, int threads) {
  memset(gradients, 0, w.rows * w.taps * sizeof(float));
  const int64_t run = tiles * TILE;
  const int64_t groups = (w.rows + ROWS - 1) / ROWS, shares = threads < groups ? (threads > 1 ? threads : 1) : groups;
  parallel_for(shares, threads, [&](int64_t share) {
    const int64_t lo = groups * share / shares * ROWS, hi = smaller(groups * (share + 1) / shares * ROWS, w.rows);
    float spare[TAPS] = {};  // takes what belongs to no row, after the last one
    gradient_tiles(planes, out, w.rows, tiles, x, dy, [&](const float* from, const float* tile, bool) {
      for (int64_t first = 0; first < w.taps; first += w.block) {
        const int64_t end = smaller(first + w.block, w.taps);
        for (int64_t o = lo; o < hi; o += ROWS) {
          const float* d = tile + o * run;
          float* g = gradients + o * w.taps;
          int64_t t = first;
          for (; t + TAPS <= end; t += TAPS) {
            float* const to[ROWS] = {g + t, o + 1 < hi ? g + w.taps + t : spare,
                                     o + 2 < hi ? g + 2 * w.taps + t : spare};
            correlate(from, w.offsets + t, d, run, to);
          }
          if (t < end) {  // fewer than four are left: the last offset again in place of those missing
            uint32_t offsets[TAPS];
            float four[ROWS][TAPS] = {};
            for (int k = 0; k < TAPS; k++) offsets[k] = w.offsets[smaller(t + k, end - 1)];
            float* const to[ROWS] = {four[0], four[1], four[2]};
            correlate(from, offsets, d, run, to);
            for (int64_t k = 0; k < ROWS && o + k < hi; k++)
              for (int64_t j = t; j < end; j++) g[k * w.taps + j] += four[k][j - t];
          }
        }
      }
    });
  });
}

}  // namespace SPARSE_ISA
