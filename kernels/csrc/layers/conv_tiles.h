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

// out[k] = start[k] + the sum of the lanes of v[k]
static inline void add_sums(float* out, const vf (&v)[4], const float* start) {
#if SPARSE_LANES == 8
  const __m256 ab = _mm256_hadd_ps((__m256)v[0], (__m256)v[1]), cd = _mm256_hadd_ps((__m256)v[2], (__m256)v[3]);
  const __m256 all = _mm256_hadd_ps(ab, cd);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  _mm_storeu_ps(out, _mm_add_ps(four, _mm_loadu_ps(start)));
#else
  for (int k = 0; k < 4; k++) {
    float total = 0;
    for (int i = 0; i < W; i++) total += v[k][i];
    out[k] = start[k] + total;
  }
#endif
}

static inline void add_sums(float* out, const vf (&v)[4]) { add_sums(out, v, out); }

static inline float sum_lanes(vf v) {
#if SPARSE_LANES == 8
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
#else
  float total = 0;
  for (int i = 0; i < W; i++) total += v[i];
  return total;
#endif
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
