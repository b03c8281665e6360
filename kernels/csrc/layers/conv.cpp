// Sparse convolution on batch-last tensors [channel][height][width][batch]: forward and input gradient, the same kernel
// on the transposed pattern.
//
// The input is first copied into planes with a zero border, `lanes` batch columns at a time; a stride becomes phases.
// Then a weight is one constant offset, and a tile of outputs (R vectors: positions of a few rows x lanes) costs it R
// multiply-adds with memory operands. Those are bound by loads, so the weights must not add many: four weights and
// their four offsets come in three. Input channels go in blocks whose part of the planes stays in L1 while all output
// channels sweep over it; the sums of a tile stay in L2. Tiles of several rows need less of the planes for as many
// outputs, so blocks have more channels. The rows of a block are in the order of their length, so that the processor
// foresees the end of the loop.
#include "layers/conv_weights.h"

namespace SPARSE_ISA {
namespace {

// The kernels are made for H rows of V vectors of a tile. With few, neighbouring weights have sums of their own, for it
// takes eight to hide the latency of a multiply-add.
template <int H, int V> static SPARSE_INLINE void axpy(vf (&sum)[H * V], vf w, const float* x, int64_t row) {
  SPARSE_UNROLL
  for (int i = 0; i < H; i++) {
    const float* from = one_address(x + i * row);
    SPARSE_UNROLL
    for (int r = 0; r < V; r++) sum[i * V + r] += w * load(from + r * W);
  }
}

// sum += n weights of one row, each times its shifted input, whose rows are `row` floats apart.
template <int H, int V>
static SPARSE_INLINE void accumulate(const float* x, int64_t row, const uint32_t* offsets, const float* weights, int n,
                                     vf (&sum)[H * V]) {
  constexpr int N = H * V, SETS = N >= 7 ? 1 : N >= 4 ? 2 : 4;
  vf sums[SETS][N] = {};
  SPARSE_UNROLL
  for (int r = 0; r < N; r++) sums[0][r] = sum[r];
  for (; n >= 4; n -= 4, offsets += 4, weights += 4) {
    const Four from(x, offsets);
    const Weights w(weights);
    axpy<H, V>(sums[0], w.get<0>(), from.at[0], row);
    axpy<H, V>(sums[1 % SETS], w.get<1>(), from.at[1], row);
    axpy<H, V>(sums[2 % SETS], w.get<2>(), from.at[2], row);
    axpy<H, V>(sums[3 % SETS], w.get<3>(), from.at[3], row);
  }
  for (; n > 0; n--, offsets++, weights++) axpy<H, V>(sums[0], splat(*weights), moved(x, *offsets), row);
  SPARSE_UNROLL
  for (int r = 0; r < N; r++) {
    sum[r] = sums[0][r];
    SPARSE_UNROLL
    for (int k = 1; k < SETS; k++) sum[r] += sums[k][r];
  }
}

template <int N> static SPARSE_INLINE void put(const vf (&v)[N], float* to) {
  SPARSE_UNROLL
  for (int r = 0; r < N; r++) store(to + r * W, v[r]);
}
template <int N> static SPARSE_INLINE void put(const vf (&v)[N], float* to, const int64_t* at) {
  SPARSE_UNROLL
  for (int r = 0; r < N; r++) store(to + at[r], v[r]);
}

// The outputs of a tile whose rows have one visit each: sums stay in registers.
template <int H, int V>
void apply_once(const Pass& p, const Tiles::Tile& tile, const float* x, const float* weights, const float* bias,
                float* y, float*) {
  const bool plain = p.tiles.plain(tile);
  const int64_t size = p.tiles.row_size();
  int64_t at[R];
  if (plain) p.tiles.places(tile, at);
  float vectors[H * V * W];
  const VisitList visits(p.w);
  x += tile.input;
  for (int64_t k = 0; k < visits.count; k++) {
    const int32_t first = visits.starts[k], row = visits.order[k];
    visits.fetch_ahead(weights, k);
    float* to = y + row * p.tiles.y.plane_size;
    vf sum[H * V];
    SPARSE_UNROLL
    for (int r = 0; r < H * V; r++) sum[r] = splat(bias ? bias[row] : 0.0f);
    accumulate<H, V>(x, size, visits.offsets + first, weights + visits.at[k], visits.starts[k + 1] - first, sum);
    if (plain) {
      put(sum, to + tile.output, at);
    } else {
      put(sum, vectors);
      give(p.tiles, tile, vectors, to);
    }
  }
}

// The outputs of a tile by way of sums [rows][vectors].
template <int H, int V>
void apply_blocks(const Pass& p, const Tiles::Tile& tile, const float* x, const float* weights, const float* bias,
                  float* y, float* sums) {
  constexpr int N = H * V;
  const ConvWeights& w = p.w;
  const bool plain = p.tiles.plain(tile);
  const int64_t size = p.tiles.row_size();
  for (int64_t o = 0; o < w.rows; o++) {
    const vf start = splat(bias ? bias[o] : 0.0f);
    SPARSE_UNROLL
    for (int r = 0; r < N; r++) store(sums + (o * N + r) * W, start);
  }
  const VisitList visits(p.w);
  x += tile.input;
  for (int64_t k = 0; k < visits.count; k++) {
    const int32_t first = visits.starts[k], n = visits.starts[k + 1] - first;
    visits.fetch_ahead(weights, k);
    if (!n) continue;
    float* at = sums + visits.order[k] * int64_t(N * W);
    vf sum[N];
    SPARSE_UNROLL
    for (int r = 0; r < N; r++) sum[r] = load(at + r * W);
    accumulate<H, V>(x, size, visits.offsets + first, weights + visits.at[k], n, sum);
    put(sum, at);
  }
  int64_t at[R];
  if (plain) p.tiles.places(tile, at);
  for (int64_t o = 0; o < w.rows; o++) {
    const float* from = sums + o * N * W;
    float* to = y + o * p.tiles.y.plane_size;
    if (plain)
      for (int r = 0; r < N; r++) store(to + tile.output + at[r], load(from + r * W));
    else
      give(p.tiles, tile, from, to);
  }
}

}  // namespace

void conv_apply(ConvPlanes planes, ConvWeights w, ConvOutput out, const float* x, const float* weights,
                const float* bias, float* y, int threads) {
  constexpr decltype(&apply_once<1, 1>) ONCE[][R] = SPARSE_KERNELS(apply_once),
                                        BLOCKS[][R] = SPARSE_KERNELS(apply_blocks);
  const Tiles tiles(planes, out, planes.tile, planes.high);
  const Pass pass(tiles, w);
  const bool once = w.visits == w.rows;
  share_tiles(tiles.count, threads, [&](int64_t first, int64_t last) {
    const Scratch<float> sums(once ? 0 : w.rows * TILE, "the sums of a tile of a convolution");
    for (int64_t i = first; i < last; i++) {
      const Tiles::Tile tile = tiles[i];
      (once ? ONCE : BLOCKS)[tile.rows - 1][tile.vectors - 1](pass, tile, x, weights, bias, y, sums);
    }
  });
}

}  // namespace SPARSE_ISA
