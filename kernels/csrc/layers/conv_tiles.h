// What the convolution kernels share: tiles of outputs, how they are read and written, sums over lanes.
#pragma once

#include "core/ops.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "core/simd_bf16.h"

#define SPARSE_UNROLL _Pragma("GCC unroll 16")
// For what works on sums in registers: a call would put them into memory and take them from there.
#define SPARSE_INLINE inline __attribute__((always_inline))
#define SPARSE_INLINE_LAMBDA __attribute__((always_inline))

namespace SPARSE_ISA {
namespace {

// Vectors of a tile: enough chains to hide the latency of a multiply-add, and what the registers hold. A kernel
// f<rows, vectors of a row> is made for every shape of a tile.
#if SPARSE_LANES == 16
constexpr int R = 16;
#define SPARSE_ROW_KERNELS(f) \
  {f<1>, f<2>, f<3>, f<4>, f<5>, f<6>, f<7>, f<8>, f<9>, f<10>, f<11>, f<12>, f<13>, f<14>, f<15>, f<16>}
#define SPARSE_KERNELS(f)                                                            \
  {                                                                                  \
    {f<1, 1>, f<1, 2>,  f<1, 3>,  f<1, 4>,  f<1, 5>,  f<1, 6>,  f<1, 7>,  f<1, 8>,   \
     f<1, 9>, f<1, 10>, f<1, 11>, f<1, 12>, f<1, 13>, f<1, 14>, f<1, 15>, f<1, 16>}, \
        {f<2, 1>, f<2, 2>, f<2, 3>, f<2, 4>, f<2, 5>, f<2, 6>, f<2, 7>, f<2, 8>},    \
        {f<3, 1>, f<3, 2>, f<3, 3>, f<3, 4>}, {                                      \
      f<4, 1>, f<4, 2>, f<4, 3>, f<4, 4>                                             \
    }                                                                                \
  }
#else
constexpr int R = 8;
#define SPARSE_ROW_KERNELS(f) {f<1>, f<2>, f<3>, f<4>, f<5>, f<6>, f<7>, f<8>}
#define SPARSE_KERNELS(f)                                                                                           \
  {                                                                                                                 \
    {f<1, 1>, f<1, 2>, f<1, 3>, f<1, 4>, f<1, 5>, f<1, 6>, f<1, 7>, f<1, 8>}, {f<2, 1>, f<2, 2>, f<2, 3>, f<2, 4>}, \
        {f<3, 1>, f<3, 2>}, {                                                                                       \
      f<4, 1>, f<4, 2>                                                                                              \
    }                                                                                                               \
  }
#endif
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

// The tiles of a pass, in a fixed order. Those of an image are as equal as they can be.
struct Tiles {
  const ConvPlanes& planes;
  const ConvOutput& y;
  int64_t across, down, count, chunk_size;

  // most: floats of a tile; high: its rows
  Tiles(const ConvPlanes& planes, const ConvOutput& y, int64_t most, int64_t high) : planes(planes), y(y) {
    const int64_t columns = most / (planes.lanes * high);
    across = (y.width + columns - 1) / columns;
    down = (y.height + high - 1) / high;
    count = planes.chunks * down * across;
    chunk_size = planes.channels * planes.phases * planes.phases * planes.plane_size;
  }

  // Tile i: its first input, where its first output is in a channel of the tensor, its rows and the positions of each,
  // how many batch columns of a position exist, and how many vectors hold those of a row.
  struct Tile {
    int64_t input, output, rows, positions, n;
    int vectors;
  };
  Tile operator[](int64_t i) const {
    const int64_t k = i % across, l = i / across % down, chunk = i / across / down;
    const int64_t column = k * y.width / across, positions = (k + 1) * y.width / across - column;
    const int64_t row = l * y.height / down, rows = (l + 1) * y.height / down - row;
    const int64_t n0 = chunk * planes.lanes, n = smaller(planes.lanes, y.batch - n0);
    const int64_t floats = (positions - 1) * planes.lanes + n;
    return {chunk * chunk_size + (row * planes.columns + column) * planes.lanes,
            row * y.row_size + column * y.column_size + n0,
            rows,
            positions,
            n,
            int((floats + W - 1) / W)};
  }
  // Floats from row to row of the planes.
  int64_t row_size() const { return planes.columns * planes.lanes; }
  // Are the vectors of a tile whole, each within a position?
  bool plain(const Tile& t) const { return t.n == planes.lanes && t.n % W == 0; }
  // Are they side by side in the tensor, too?
  bool together(const Tile& t) const { return plain(t) && t.rows == 1 && (t.positions == 1 || y.column_size == t.n); }
  // Where the vectors of a plain tile are in the tensor, from its first output on.
  void places(const Tile& t, int64_t (&at)[R]) const {
    for (int64_t row = 0, k = 0; row < t.rows; row++)
      for (int64_t r = 0; r < t.vectors; r++)
        at[k++] = row * y.row_size + r * W / planes.lanes * y.column_size + r * W % planes.lanes;
  }
};

// Without a call to memcpy, which costs as much as these few floats: whole vectors, the last one over the one before
// it.
static inline void copy(float* to, const float* from, int64_t n) {
  if (n >= W) {
    for (int64_t i = 0; i + W <= n; i += W) store(to + i, load(from + i));
    store(to + n - W, load(from + n - W));
  } else if (n >= 4) {
    memcpy(to, from, 16);
    if (W == 16 && n > 8) memcpy(to + 4, from + 4, 16), memcpy(to + n - 8, from + n - 8, 16);
    memcpy(to + n - 4, from + n - 4, 16);
  } else {
    for (int64_t i = 0; i < n; i++) to[i] = from[i];
  }
}

static inline void copy(bf16* to, const bf16* from, int64_t n) { memcpy(to, from, n * sizeof(bf16)); }
static inline void copy(bf16* to, const float* from, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(to + i, load(from + i));
  if (i < n) store_first(to + i, load_first(from + i, n - i), n - i);
}

// to[0] to to[n - 1] = 0, likewise.
static inline void clear(float* to, int64_t n) {
  if (n >= W) {
    for (int64_t i = 0; i + W <= n; i += W) store(to + i, vf{});
    store(to + n - W, vf{});
  } else {
    for (int64_t i = 0; i < n; i++) to[i] = 0;
  }
}

static inline void clear(bf16* to, int64_t n) { memset(to, 0, n * sizeof(bf16)); }

// The positions of a tile between the tensor and vectors that lie side by side, with 0 where nothing is.
template <typename T> static inline void take(const Tiles& tiles, const Tiles::Tile& t, const T* tensor, T* vectors) {
  memset(vectors, 0, t.rows * t.vectors * W * sizeof(T));
  for (int64_t r = 0; r < t.rows; r++)
    for (int64_t c = 0; c < t.positions; c++)
      copy(vectors + r * t.vectors * W + c * tiles.planes.lanes,
           tensor + t.output + r * tiles.y.row_size + c * tiles.y.column_size, t.n);
}
template <typename T>
static inline void give(const Tiles& tiles, const Tiles::Tile& t, const float* vectors, T* tensor) {
  for (int64_t r = 0; r < t.rows; r++)
    for (int64_t c = 0; c < t.positions; c++)
      copy(tensor + t.output + r * tiles.y.row_size + c * tiles.y.column_size,
           vectors + r * t.vectors * W + c * tiles.planes.lanes, t.n);
}

// A few shares of tiles for each thread, and all in one for a single one: what a share needs is allocated once.
template <typename Use> void share_tiles(int64_t tiles, int threads, Use use) {
  const int64_t shares = threads > 1 ? smaller(tiles, 8 * int64_t(threads)) : 1;
  parallel_for(shares, threads, [&](int64_t i) { use(tiles * i / shares, tiles * (i + 1) / shares); });
}

}  // namespace
}  // namespace SPARSE_ISA
