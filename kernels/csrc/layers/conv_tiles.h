// What the convolution kernels share: tiles of outputs, how they are read and written, sums over lanes.
#pragma once

#include "core/ops.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/simd.h"

#define SPARSE_UNROLL _Pragma("GCC unroll 16")

namespace SPARSE_ISA {
namespace {

constexpr int R = 8;         // vectors of a tile: enough chains to hide the latency of a multiply-add
constexpr int TILE = R * W;  // floats of a tile

typedef float vf4 __attribute__((vector_size(16)));
typedef float vf4_any __attribute__((vector_size(16), aligned(4), may_alias));

// The sum of the four quarters (of 16 lanes) or halves (of 8).
static inline vf4 fold(vf v) {
#if SPARSE_LANES == 16
  const auto half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#elif SPARSE_LANES == 8
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
  return v;
#endif
}

// The four, in all lanes. Intrinsics, for GCC makes two shuffles out of what is one load.
static inline vf repeat(const float* p) {
#if SPARSE_LANES == 16
  return (vf)_mm512_maskz_broadcast_f32x4(ALL, _mm_loadu_ps(p));
#elif SPARSE_LANES == 8
  return (vf)_mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
#else
  return load(p);
#endif
}

// In every four lanes: two of a, then two of b, by their number in the four.
template <int I, int J, int K, int L> static inline vf fours(vf a, vf b) {
#if SPARSE_LANES == 16
  return __builtin_shufflevector(a, b, I, J, K + 16, L + 16, I + 4, J + 4, K + 20, L + 20, I + 8, J + 8, K + 24, L + 24,
                                 I + 12, J + 12, K + 28, L + 28);
#elif SPARSE_LANES == 8
  return __builtin_shufflevector(a, b, I, J, K + 8, L + 8, I + 4, J + 4, K + 12, L + 12);
#else
  return __builtin_shufflevector(a, b, I, J, K + 4, L + 4);
#endif
}

// out[k] = start[k] + the sum of the lanes of v[k]: shuffles, for a weight gradient needs one for every weight and
// tile.
static inline void add_sums(float* out, const vf (&v)[4], const float* start) {
  const vf ab = fours<0, 1, 2, 3>(v[0], v[1]) + fours<2, 3, 0, 1>(v[0], v[1]);
  const vf cd = fours<0, 1, 2, 3>(v[2], v[3]) + fours<2, 3, 0, 1>(v[2], v[3]);
  const vf4 sums = fold(fours<0, 2, 0, 2>(ab, cd) + fours<1, 3, 1, 3>(ab, cd));
  *reinterpret_cast<vf4_any*>(out) = sums + *reinterpret_cast<const vf4_any*>(start);
}

static inline void add_sums(float* out, const vf (&v)[4]) { add_sums(out, v, out); }

static inline float sum_lanes(vf v) {
  const vf4 four = fold(v);
  return (four[0] + four[2]) + (four[1] + four[3]);
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
    chunk_size = planes.channels * planes.phases * planes.phases * planes.plane_size;
  }
  // Vectors of a tile that hold outputs: fewer than R where the image is narrower than a tile.
  int vectors() const {
    const int64_t wide = smaller(columns, y.width);
    const int64_t used = ((wide > 1 ? wide * planes.lanes : smaller(planes.lanes, y.batch)) + W - 1) / W;
    return used <= 1 ? 1 : used <= 2 ? 2 : used <= 4 ? 4 : R;
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

// y = bias + what add(input under the tile, sums [rows][TILE]) adds, for every tile.
template <typename Add>
void apply_tiles(const ConvPlanes& planes, const ConvOutput& out, int64_t rows, const float* x, const float* bias,
                 float* y, int threads, Add add) {
  constexpr int64_t AT_ONCE = 4;  // tiles that share an allocation
  const Tiles tiles(planes, out);
  parallel_for((tiles.count + AT_ONCE - 1) / AT_ONCE, threads, [&](int64_t group) {
    const Scratch<float> memory((rows + 2) * TILE, "the sums of a tile of a convolution");
    float* sums = memory;
    for (int64_t i = group * AT_ONCE; i < tiles.count && i < (group + 1) * AT_ONCE; i++) {
      const Tiles::Part part = tiles.part(i);
      for (int64_t o = 0; o < rows; o++) {
        const vf start = splat(bias ? bias[o] : 0.0f);
        for (int r = 0; r < R; r++) store(sums + o * TILE + r * W, start);
      }
      add(tiles.input(x, i), sums);
      for (int64_t o = 0; o < rows; o++)
        for (int64_t c = 0; c < part.positions; c++)
          copy(y + o * out.plane_size + part.place + c * out.column_size, sums + o * TILE + c * planes.lanes, part.n);
    }
  });
}

// Calls use(input under the first tile, output gradients [rows][together * TILE], is it the first) for every `together`
// tiles of a row, in order. Gradients outside the tensor are 0.
template <typename Use>
void gradient_tiles(const ConvPlanes& planes, const ConvOutput& out, int64_t rows, int64_t together, const float* x,
                    const float* dy, Use use) {
  const Tiles tiles(planes, out);
  const int64_t run = together * TILE, floats = (rows + 2) * run;
  const Scratch<float> memory(floats, "a tile of a convolution's output gradients");
  float* tile = memory;
  memset(tile, 0, floats * sizeof(float));
  for (int64_t i = 0; i < tiles.count; i += together) {
    for (int64_t k = 0; k < together; k++) {
      const Tiles::Part part = tiles.part(i + k);
      const bool whole = part.positions == tiles.columns && part.n == planes.lanes;
      for (int64_t o = 0; o < rows; o++) {
        float* to = tile + o * run + k * TILE;
        const float* from = dy + o * out.plane_size + part.place;
        if (!whole) memset(to, 0, TILE * sizeof(float));
        for (int64_t c = 0; c < part.positions; c++) copy(to + c * planes.lanes, from + c * out.column_size, part.n);
      }
    }
    use(tiles.input(x, i), tile, i == 0);
  }
}

}  // namespace
}  // namespace SPARSE_ISA
