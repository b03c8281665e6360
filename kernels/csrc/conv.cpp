// Sparse convolution on batch-last tensors [channel][height][width][batch]: forward and input gradient (the same kernel
// on the transposed pattern) and the weight gradient on the mask.
//
// The input is first copied into planes with a zero border, `lanes` batch columns at a time; a stride becomes phases.
// Then a weight is one constant offset, and a tile of outputs (8 vectors: consecutive positions x lanes) costs it 8
// multiply-adds with memory operands. Those are bound by loads, so the weights must not add any: four weights and their
// four offsets come in three. Input channels go in blocks whose part of the planes stays in L1 while all output
// channels sweep over it; the sums of a tile stay in L2. The rows of a block are in the order of their length, so that
// the processor foresees the end of the loop.
#include <stdlib.h>

#include "declare.h"
#include "parallel.h"
#include "simd.h"

#define SPARSE_UNROLL _Pragma("GCC unroll 16")

namespace SPARSE_ISA {
namespace {

constexpr int R = 8;         // vectors of a tile: enough chains to hide the latency of a multiply-add
constexpr int TILE = R * W;  // floats of a tile

// Where four weights find their inputs.
struct Four {
  const float* at[4];
  Four(const float* base, const uint32_t* offsets) {
    uint64_t low, high;  // two loads for four offsets
    memcpy(&low, offsets, 8);
    memcpy(&high, offsets + 2, 8);
    const char* x = reinterpret_cast<const char*>(base);
    at[0] = reinterpret_cast<const float*>(x + uint32_t(low));
    at[1] = reinterpret_cast<const float*>(x + (low >> 32));
    at[2] = reinterpret_cast<const float*>(x + uint32_t(high));
    at[3] = reinterpret_cast<const float*>(x + (high >> 32));
  }
};

// Four consecutive weights; get<k> is the k-th in every lane.
#if SPARSE_LANES == 8
struct Weights {
  __m256 all;
  explicit Weights(const float* p) : all(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(p))) {}
  template <int K> vf get() const { return (vf)_mm256_permute_ps(all, K * 0x55); }
};
#else
struct Weights {
  const float* p;
  explicit Weights(const float* p) : p(p) {}
  template <int K> vf get() const { return splat(p[K]); }
};
#endif

static inline void axpy(vf (&sum)[R], vf w, const float* x) {
  SPARSE_UNROLL
  for (int r = 0; r < R; r++) sum[r] += w * load(x + r * W);
}

// sums += the weights of one row and block, each times its shifted input.
void accumulate(const float* x, const uint32_t* offsets, const float* weights, int fours, float* sums) {
  vf sum[R];
  SPARSE_UNROLL
  for (int r = 0; r < R; r++) sum[r] = load(sums + r * W);
  for (int i = 0; i < fours; i++, offsets += 4, weights += 4) {
    const Four from(x, offsets);
    const Weights w(weights);
    axpy(sum, w.get<0>(), from.at[0]);
    axpy(sum, w.get<1>(), from.at[1]);
    axpy(sum, w.get<2>(), from.at[2]);
    axpy(sum, w.get<3>(), from.at[3]);
  }
  SPARSE_UNROLL
  for (int r = 0; r < R; r++) store(sums + r * W, sum[r]);
}

static inline vf dot(const vf (&d)[R], const float* x) {
  vf a = d[0] * load(x), b = d[1] * load(x + W);
  SPARSE_UNROLL
  for (int r = 2; r < R; r += 2) {
    a += d[r] * load(x + r * W);
    b += d[r + 1] * load(x + (r + 1) * W);
  }
  return a + b;
}

// out[k] += the sum of the lanes of v[k]
static inline void add_sums(float* out, const vf (&v)[4]) {
#if SPARSE_LANES == 8
  const __m256 ab = _mm256_hadd_ps((__m256)v[0], (__m256)v[1]), cd = _mm256_hadd_ps((__m256)v[2], (__m256)v[3]);
  const __m256 all = _mm256_hadd_ps(ab, cd);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  _mm_storeu_ps(out, _mm_add_ps(four, _mm_loadu_ps(out)));
#else
  for (int k = 0; k < 4; k++) {
    float total = 0;
    for (int i = 0; i < W; i++) total += v[k][i];
    out[k] += total;
  }
#endif
}

// gradients += for the weights of one row and block, the output gradient (a tile) times their shifted input.
void correlate(const float* x, const uint32_t* offsets, const float* dy, int fours, float* gradients) {
  vf d[R];
  SPARSE_UNROLL
  for (int r = 0; r < R; r++) d[r] = load(dy + r * W);
  for (int i = 0; i < fours; i++, offsets += 4, gradients += 4) {
    const Four from(x, offsets);
    const vf sums[4] = {dot(d, from.at[0]), dot(d, from.at[1]), dot(d, from.at[2]), dot(d, from.at[3])};
    add_sums(gradients, sums);
  }
}

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The tiles of a pass, in a fixed order.
struct Tiles {
  const ConvPlanes& planes;
  const ConvOutput& y;
  int64_t columns, across, count, chunk_size;  // columns: positions of a tile

  Tiles(const ConvPlanes& planes, const ConvOutput& y) : planes(planes), y(y) {
    columns = TILE / planes.lanes;
    across = (y.width + columns - 1) / columns;
    count = planes.chunks * y.height * across;
    chunk_size = planes.channels * planes.stride * planes.stride * planes.plane_size;
  }
  int64_t column(int64_t i) const { return i % across * columns; }
  int64_t row(int64_t i) const { return i / across % y.height; }
  int64_t chunk(int64_t i) const { return i / across / y.height; }

  const float* input(const float* x, int64_t i) const {
    return x + chunk(i) * chunk_size + (row(i) * planes.columns + column(i)) * planes.lanes;
  }

  // The part of tile i that exists: positions, batch columns of each, and where the first is in a channel of the
  // tensor.
  struct Part {
    int64_t positions, n, place;
  };
  Part part(int64_t i) const {
    const int64_t n0 = chunk(i) * planes.lanes;
    return {smaller(columns, y.width - column(i)), smaller(planes.lanes, y.batch - n0),
            row(i) * y.row_size + column(i) * y.column_size + n0};
  }
};

// Whole vectors where it can: most copies here are a cache line, and a call to memcpy costs as much.
static inline void copy(float* to, const float* from, int64_t n) {
  if (n % W) {
    memcpy(to, from, n * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; i += W) store(to + i, load(from + i));
}

float* allocate(int64_t floats) {
  void* p = nullptr;
  if (posix_memalign(&p, 64, floats * sizeof(float) + 64)) abort();
  return static_cast<float*>(p);
}

}  // namespace

int conv_tile() { return TILE; }

void conv_planes(ConvPlanes p, const float* x, float* out, int threads) {
  parallel_for(p.chunks * p.channels, threads, [&](int64_t i) {
    const int64_t n0 = i / p.channels * p.lanes, n = p.batch - n0 < p.lanes ? p.batch - n0 : p.lanes;
    const float* from = x + i % p.channels * p.height * p.width * p.batch + n0;
    float* to = out + i * p.stride * p.stride * p.plane_size;
    for (int64_t a = 0; a < p.stride; a++)
      for (int64_t b = 0; b < p.stride; b++, to += p.plane_size) {
        float* row = to;
        for (int64_t r = 0; r < p.rows; r++, row += p.columns * p.lanes) {
          const int64_t h = (r - p.top) * p.stride + a;
          const int64_t first = p.left;  // columns before it and from last on are border
          int64_t last = first + (p.width - b + p.stride - 1) / p.stride;
          last = last < p.columns ? last : p.columns;
          if (r < p.top || h >= p.height || last <= first) {
            memset(row, 0, p.columns * p.lanes * sizeof(float));
            continue;
          }
          memset(row, 0, first * p.lanes * sizeof(float));
          const float* line = from + (h * p.width + b) * p.batch;
          if (p.stride == 1 && n == p.lanes && p.batch == p.lanes) {
            memcpy(row + first * p.lanes, line, (last - first) * p.lanes * sizeof(float));
          } else {
            for (int64_t c = first; c < last; c++, line += p.stride * p.batch) {
              copy(row + c * p.lanes, line, n);
              if (n < p.lanes) memset(row + c * p.lanes + n, 0, (p.lanes - n) * sizeof(float));
            }
          }
          memset(row + last * p.lanes, 0, (p.columns - last) * p.lanes * sizeof(float));
        }
        memset(row, 0, (p.plane_size - p.rows * p.columns * p.lanes) * sizeof(float));
      }
  });
}

void conv_apply(ConvPlanes planes, ConvWeights w, ConvOutput out, const float* x, const float* weights,
                const float* bias, float* y, int threads) {
  constexpr int64_t AT_ONCE = 4;  // tiles that share an allocation
  const Tiles tiles(planes, out);
  parallel_for((tiles.count + AT_ONCE - 1) / AT_ONCE, threads, [&](int64_t group) {
    float* sums = allocate(w.rows * TILE);
    for (int64_t i = group * AT_ONCE; i < tiles.count && i < (group + 1) * AT_ONCE; i++) {
      for (int64_t o = 0; o < w.rows; o++) {
        const vf start = splat(bias ? bias[o] : 0.0f);
        for (int r = 0; r < R; r++) store(sums + o * TILE + r * W, start);
      }
      const float* from = tiles.input(x, i);
      for (int64_t k = 0; k < w.blocks * w.rows; k++) {
        const int64_t first = w.starts[k];
        const int fours = w.starts[k + 1] - first;
        if (fours) accumulate(from, w.offsets + 4 * first, weights + 4 * first, fours, sums + w.order[k] * TILE);
      }
      const Tiles::Part part = tiles.part(i);
      for (int64_t o = 0; o < w.rows; o++)
        for (int64_t c = 0; c < part.positions; c++)
          copy(y + o * out.plane_size + part.place + c * out.column_size, sums + o * TILE + c * planes.lanes, part.n);
    }
    free(sums);
  });
}

void conv_gradient(ConvPlanes planes, ConvWeights w, ConvOutput out, const float* x, const float* dy, float* gradients,
                   int threads) {
  const Tiles tiles(planes, out);
  const int64_t entries = w.blocks * w.rows, all = w.starts[entries];
  memset(gradients, 0, all * 4 * sizeof(float));
  // A thread has a share of the weights and goes through all tiles: every sum has one order whatever the thread count.
  const int64_t parts = threads < entries ? (threads > 1 ? threads : 1) : entries;
  parallel_for(parts, threads, [&](int64_t share) {
    int64_t lo = 0, hi = 0;
    while (lo < entries && w.starts[lo] < all * share / parts) lo++;
    while (hi < entries && w.starts[hi] < all * (share + 1) / parts) hi++;
    float* tile = allocate(w.rows * TILE);
    memset(tile, 0, w.rows * TILE * sizeof(float));
    for (int64_t i = 0; i < tiles.count; i++) {
      const Tiles::Part part = tiles.part(i);
      if (part.positions < tiles.columns || part.n < planes.lanes) memset(tile, 0, w.rows * TILE * sizeof(float));
      for (int64_t o = 0; o < w.rows; o++)
        for (int64_t c = 0; c < part.positions; c++)
          copy(tile + o * TILE + c * planes.lanes, dy + o * out.plane_size + part.place + c * out.column_size, part.n);
      const float* from = tiles.input(x, i);
      for (int64_t k = lo; k < hi; k++) {
        const int64_t first = w.starts[k];
        const int fours = w.starts[k + 1] - first;
        if (fours) correlate(from, w.offsets + 4 * first, tile + w.order[k] * TILE, fours, gradients + 4 * first);
      }
    }
    free(tile);
  });
}

}  // namespace SPARSE_ISA
