// The weight gradient of a sparse convolution, on the mask: a tile of output gradients in registers, times the shifted
// input of each weight, in the tiles, planes and order of the forward pass (conv.cpp).
#include "layers/conv_weights.h"

namespace SPARSE_ISA {
namespace {

template <int H, int V> static SPARSE_INLINE vf dot(const vf (&d)[H * V], const float* x, int64_t row) {
  constexpr int N = H * V, CHAINS = N > 4 ? 2 : 1;
  vf sum[2] = {d[0] * load(x)};
  SPARSE_UNROLL
  for (int i = 0; i < H; i++) {
    const float* from = one_address(x + i * row);
    SPARSE_UNROLL
    for (int r = i == 0; r < V; r++) sum[(i * V + r) % CHAINS] += d[i * V + r] * load(from + r * W);
  }
  return CHAINS > 1 ? sum[0] + sum[1] : sum[0];
}

// gradients += for the N last weights of a row, fewer than four: their lanes are summed together, too.
template <int H, int V, int N>
static SPARSE_INLINE void correlate_rest(const float* x, int64_t row, const uint32_t* offsets, const vf (&d)[H * V],
                                         bool first, float* gradients) {
  const float zero[4] = {};
  float found[4];
  vf sums[4] = {};
  SPARSE_UNROLL
  for (int k = 0; k < N; k++) sums[k] = dot<H, V>(d, moved(x, offsets[k]), row);
  add_sums(found, sums, zero);
  for (int k = 0; k < N; k++) gradients[k] = (first ? 0.0f : gradients[k]) + found[k];
}

// gradients += for n weights of one row, the output gradient (a tile) times their shifted input; or = in the first
// tile.
template <int H, int V>
static SPARSE_INLINE void correlate(const float* x, int64_t row, const uint32_t* offsets, const vf (&d)[H * V], int n,
                                    bool first, float* gradients) {
  const float zero[4] = {};
  for (; n >= 4; n -= 4, offsets += 4, gradients += 4) {
    const Four from(x, offsets);
    const vf sums[4] = {dot<H, V>(d, from.at[0], row), dot<H, V>(d, from.at[1], row), dot<H, V>(d, from.at[2], row),
                        dot<H, V>(d, from.at[3], row)};
    add_sums(gradients, sums, first ? zero : gradients);
  }
  if (n == 3)
    correlate_rest<H, V, 3>(x, row, offsets, d, first, gradients);
  else if (n == 2)
    correlate_rest<H, V, 2>(x, row, offsets, d, first, gradients);
  else if (n == 1)
    correlate_rest<H, V, 1>(x, row, offsets, d, first, gradients);
}

// The weight gradients of visits lo to hi of a tile. dy: the output gradients under it, of `row_size` floats a row,
// whose vectors are at `at`.
template <int H, int V>
void gradient_tile(const Pass& p, int64_t lo, int64_t hi, const float* x, const float* dy, int64_t row_size,
                   const int64_t* at, bool first, float* gradients) {
  const VisitList visits(p.w);
  const int64_t size = p.tiles.row_size();
  for (int64_t k = lo; k < hi; k++) {
    const int32_t start = visits.starts[k], n = visits.starts[k + 1] - start;
    const float* row = dy + visits.order[k] * row_size;
    vf d[H * V];
    SPARSE_UNROLL
    for (int r = 0; r < H * V; r++) d[r] = load(row + at[r]);
    correlate<H, V>(x, size, visits.offsets + start, d, n, first, gradients + visits.at[k]);
  }
}

// The weight gradients of visits lo to hi, tile after tile. Output gradients that every block of channels reads again
// are brought together first: in the tensor, rows are often a power of two apart and share few cache sets.
void gradient(const Pass& p, int64_t lo, int64_t hi, const float* x, const float* dy, float* gradients) {
  constexpr decltype(&gradient_tile<1, 1>) RUN[][R] = SPARSE_KERNELS(gradient_tile);
  const Tiles& tiles = p.tiles;
  const Scratch<float> memory(p.w.rows * TILE, "a tile of a convolution's output gradients");
  float* vectors = memory;
  int64_t together[R], places[R];
  for (int r = 0; r < R; r++) together[r] = r * W;
  for (int64_t i = 0; i < tiles.count; i++) {
    const Tiles::Tile tile = tiles[i];
    const bool plain = tiles.plain(tile), in_place = plain && p.w.visits == p.w.rows;
    const int64_t all = tile.rows * tile.vectors;
    if (plain) tiles.places(tile, places);
    for (int64_t o = 0; o < p.w.rows && !in_place; o++) {
      const float* from = dy + o * tiles.y.plane_size;
      float* to = vectors + o * all * W;
      if (plain)
        for (int64_t r = 0; r < all; r++) store(to + r * W, load(from + tile.output + places[r]));
      else
        take(tiles, tile, from, to);
    }
    RUN[tile.rows - 1][tile.vectors - 1](p, lo, hi, x + tile.input, in_place ? dy + tile.output : vectors,
                                         in_place ? tiles.y.plane_size : all * W, in_place ? places : together, i == 0,
                                         gradients);
  }
}

}  // namespace

void conv_gradient(ConvPlanes planes, ConvWeights w, ConvOutput out, const float* x, const float* dy, float* gradients,
                   int threads) {
  const Tiles tiles(planes, out, planes.tile, planes.high);
  const Pass pass(tiles, w);
  // A thread has a share of the weights and goes through all tiles: every sum has one order whatever the thread count.
  const int64_t all = w.starts[w.visits], shares = threads > 1 ? smaller(threads, w.visits) : 1;
  parallel_for(shares, threads, [&](int64_t share) {
    const auto first = [&](int64_t share) {
      int64_t k = 0;
      while (k < w.visits && w.starts[k] < all * share / shares) k++;
      return k;
    };
    gradient(pass, first(share), first(share + 1), x, dy, gradients);
  });
}

}  // namespace SPARSE_ISA
