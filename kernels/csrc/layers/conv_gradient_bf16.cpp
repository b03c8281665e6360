// The weight gradient of a sparse convolution on bfloat16 tensors, on the mask (conv_gradient.cpp). Products go by
// pairs of neighbours in memory, which are images of one position; sums are float.
#include "layers/conv_pairs.h"

namespace SPARSE_ISA {
namespace {

template <bool DOT, int N> struct Outputs;  // a tile of output gradients in registers
template <int N> struct Outputs<true, N> {
  vp d[N];
  void set(int r, vp v) { d[r] = v; }
  template <int V> SPARSE_INLINE vf times(const bf16* x, int64_t row) const {
    vf sum[2] = {};
    SPARSE_UNROLL
    for (int r = 0; r < N; r++) sum[r % 2] = dot(sum[r % 2], d[r], load_pairs(x + r / V * row + r % V * P));
    return sum[0] + sum[1];
  }
};
template <int N> struct Outputs<false, N> {
  vf low[N], high[N];
  void set(int r, vp v) { low[r] = as_float(SPARSE_ISA::low(vp{}, v)), high[r] = as_float(SPARSE_ISA::high(vp{}, v)); }
  template <int V> SPARSE_INLINE vf times(const bf16* x, int64_t row) const {
    vf sum[2] = {};
    SPARSE_UNROLL
    for (int r = 0; r < N; r++) {
      const vp u = load_pairs(x + r / V * row + r % V * P);
      sum[0] += low[r] * as_float(SPARSE_ISA::low(vp{}, u));
      sum[1] += high[r] * as_float(SPARSE_ISA::high(vp{}, u));
    }
    return sum[0] + sum[1];
  }
};

template <bool DOT> struct Gradient {
  // The weight gradients of visits lo to hi of a tile; dy: vectors [rows][vectors].
  template <int H, int V>
  static void run(const Pass& p, int64_t lo, int64_t hi, const bf16* x, const bf16* dy, bool first, float* gradients) {
    constexpr int N = H * V;
    const ConvWeights& w = p.w;
    const int64_t size = p.tiles.row_size();
    const float zero[4] = {};
    for (int64_t k = lo; k < hi; k++) {
      int32_t n = w.starts[k + 1] - w.starts[k];
      const uint32_t* offsets = w.offsets + w.starts[k];
      float* to = gradients + p.at[k];
      const bf16* from = dy + w.order[k] * N * P;
      Outputs<DOT, N> d;
      SPARSE_UNROLL
      for (int r = 0; r < N; r++) d.set(r, load_pairs(from + r * P));
      const auto one = [&](int i) SPARSE_INLINE_LAMBDA { return d.template times<V>(moved(x, offsets[i]), size); };
      for (; n >= 4; n -= 4, offsets += 4, to += 4) {
        const vf sums[4] = {one(0), one(1), one(2), one(3)};
        add_sums(to, sums, first ? zero : to);
      }
      for (; n > 0; n--, offsets++, to++) *to = (first ? 0.0f : *to) + sum_lanes(one(0));
    }
  }
};

template <bool DOT> void gradient(const Pass& p, int64_t lo, int64_t hi, const bf16* x, const bf16* dy, float* to) {
  constexpr decltype(&Gradient<DOT>::template run<1, 1>) RUN[][PAIRS] =
      SPARSE_PAIR_KERNELS(Gradient<DOT>::template run);
  const Tiles& tiles = p.tiles;
  const Scratch<bf16> memory(p.w.rows * TILE, "a tile of a convolution's output gradients");
  bf16* vectors = memory;
  int64_t places[PAIRS];
  for (int64_t i = 0; i < tiles.count; i++) {
    const Tiles::Tile tile = tiles[i];
    const int across = pair_vectors(tiles, tile), all = int(tile.rows) * across;
    const bool plain = tiles.plain(tile) && tile.n % P == 0;
    if (plain) pair_places(tiles, tile, across, places);
    for (int64_t o = 0; o < p.w.rows; o++) {
      const bf16* from = dy + o * tiles.y.plane_size;
      bf16* into = vectors + o * all * P;
      if (plain)
        for (int r = 0; r < all; r++) store_pairs(into + r * P, load_pairs(from + tile.output + places[r]));
      else
        take_pairs(tiles, tile, across, from, into);
    }
    RUN[tile.rows - 1][across - 1](p, lo, hi, x + tile.input, vectors, i == 0, to);
  }
}

}  // namespace

void conv_gradient_bf16(ConvPlanes planes, ConvWeights w, ConvOutput out, const bf16* x, const bf16* dy,
                        float* gradients, bool with_dot, int threads) {
  const Tiles tiles(planes, out, planes.tile, planes.high);
  const Pass pass(tiles, w);
  const int64_t all = w.starts[w.visits], shares = threads > 1 ? smaller(threads, w.visits) : 1;
  parallel_for(shares, threads, [&](int64_t share) {  // of the weights, through all tiles, as in conv_gradient.cpp
    const auto first = [&](int64_t share) {
      int64_t k = 0;
      while (k < w.visits && w.starts[k] < all * share / shares) k++;
      return k;
    };
    const auto run = with_dot ? gradient<true> : gradient<false>;
    run(pass, first(share), first(share + 1), x, dy, gradients);
  });
}

}  // namespace SPARSE_ISA
