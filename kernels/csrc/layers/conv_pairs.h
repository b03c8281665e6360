// What the bfloat16 convolution kernels share: tiles in vectors of P = 2 W entries.
#pragma once

#include "core/simd_bf16.h"
#include "layers/conv_weights.h"

namespace SPARSE_ISA {
namespace {

constexpr int P = 2 * W, PAIRS = R / 2;  // entries of a vector, vectors of a tile

#if SPARSE_LANES == 16
#define SPARSE_PAIR_KERNELS(f)                                                                                      \
  {                                                                                                                 \
    {f<1, 1>, f<1, 2>, f<1, 3>, f<1, 4>, f<1, 5>, f<1, 6>, f<1, 7>, f<1, 8>}, {f<2, 1>, f<2, 2>, f<2, 3>, f<2, 4>}, \
        {f<3, 1>, f<3, 2>}, {                                                                                       \
      f<4, 1>, f<4, 2>                                                                                              \
    }                                                                                                               \
  }
#else
#define SPARSE_PAIR_KERNELS(f)                                                       \
  {                                                                                  \
    {f<1, 1>, f<1, 2>, f<1, 3>, f<1, 4>}, {f<2, 1>, f<2, 2>}, {f<3, 1>}, { f<4, 1> } \
  }
#endif

static inline const bf16* moved(const bf16* x, uint32_t bytes) {
  return reinterpret_cast<const bf16*>(reinterpret_cast<const char*>(x) + bytes);
}
// The same value, in a register: GCC would load what is used twice from memory twice, and loads are what binds.
static SPARSE_INLINE vp held(vp v) {
#if SPARSE_LANES == 16 && !defined(SPARSE_EMULATE_AVX512)
  asm("" : "+v"(v));
#endif
  return v;
}
static inline void store_pairs(bf16* p, vp v) { *reinterpret_cast<vp_any*>(p) = v; }

// Vectors of a row of a tile.
static inline int pair_vectors(const Tiles& tiles, const Tiles::Tile& t) {
  return int(((t.positions - 1) * tiles.planes.lanes + t.n + P - 1) / P);
}

// Where the vectors of a tile are in the tensor, from its first output on, if each is within a position.
static inline void pair_places(const Tiles& tiles, const Tiles::Tile& t, int vectors, int64_t (&at)[PAIRS]) {
  for (int64_t row = 0, k = 0; row < t.rows; row++)
    for (int64_t r = 0; r < vectors; r++)
      at[k++] = row * tiles.y.row_size + r * P / tiles.planes.lanes * tiles.y.column_size + r * P % tiles.planes.lanes;
}

// The positions of a tile between vectors side by side and the tensor, as take() and give() of conv_tiles.h.
static inline void give_pairs(const Tiles& tiles, const Tiles::Tile& t, int vectors, const bf16* from, bf16* tensor) {
  for (int64_t r = 0; r < t.rows; r++)
    for (int64_t c = 0; c < t.positions; c++)
      memcpy(tensor + t.output + r * tiles.y.row_size + c * tiles.y.column_size,
             from + r * vectors * P + c * tiles.planes.lanes, t.n * sizeof(bf16));
}
static inline void take_pairs(const Tiles& tiles, const Tiles::Tile& t, int vectors, const bf16* tensor, bf16* to) {
  memset(to, 0, t.rows * vectors * P * sizeof(bf16));
  for (int64_t r = 0; r < t.rows; r++)
    for (int64_t c = 0; c < t.positions; c++)
      memcpy(to + r * vectors * P + c * tiles.planes.lanes,
             tensor + t.output + r * tiles.y.row_size + c * tiles.y.column_size, t.n * sizeof(bf16));
}

}  // namespace
}  // namespace SPARSE_ISA
