// Sparse convolution on batch-last tensors [channel][height][width][batch]: forward and input gradient (the same kernel
// on the transposed pattern; for linear layers another, on the pattern as it is) and the weight gradient on the mask.
//
// The input is first copied into planes with a zero border, `lanes` batch columns at a time; a stride becomes phases.
// Then a weight is one constant offset, and a tile of outputs (8 vectors: consecutive positions x lanes) costs it 8
// multiply-adds with memory operands. Those are bound by loads, so the weights must not add many: four weights and
// their four offsets come in three. Input channels go in blocks whose part of the planes stays in L1 while all output
// channels sweep over it; the sums of a tile stay in L2. The rows of a block are in the order of their length, so that
// the processor foresees the end of the loop.
#include "layers/conv_tiles.h"

namespace SPARSE_ISA {
namespace {

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

// Four consecutive weights, in one load; get<k> is the k-th in every lane.
struct Weights {
  vf all;
  explicit Weights(const float* p) : all(repeat(p)) {}
  template <int K> vf get() const { return fours<K, K, K, K>(all, all); }
};

static inline const float* moved(const float* x, uint32_t bytes) {
  return reinterpret_cast<const float*>(reinterpret_cast<const char*>(x) + bytes);
}

// The kernels are made for V vectors of a tile. With few, neighbouring weights have sums of their own, for it takes
// eight to hide the latency of a multiply-add.
template <int V> static inline void axpy(vf (&sum)[V], vf w, const float* x) {
  SPARSE_UNROLL
  for (int r = 0; r < V; r++) sum[r] += w * load(x + r * W);
}

// sum += n weights of one row, each times its shifted input.
template <int V>
static inline void accumulate(const float* x, const uint32_t* offsets, const float* weights, int n, vf (&sum)[V]) {
  constexpr int SETS = V >= 7 ? 1 : V >= 4 ? 2 : 4;
  vf sums[SETS][V] = {};
  SPARSE_UNROLL
  for (int r = 0; r < V; r++) sums[0][r] = sum[r];
  for (; n >= 4; n -= 4, offsets += 4, weights += 4) {
    const Four from(x, offsets);
    const Weights w(weights);
    axpy(sums[0], w.get<0>(), from.at[0]);
    axpy(sums[1 % SETS], w.get<1>(), from.at[1]);
    axpy(sums[2 % SETS], w.get<2>(), from.at[2]);
    axpy(sums[3 % SETS], w.get<3>(), from.at[3]);
  }
  for (; n > 0; n--, offsets++, weights++) axpy(sums[0], splat(*weights), moved(x, *offsets));
  SPARSE_UNROLL
  for (int r = 0; r < V; r++) {
    sum[r] = sums[0][r];
    SPARSE_UNROLL
    for (int k = 1; k < SETS; k++) sum[r] += sums[k][r];
  }
}

template <int V> static inline void put(const vf (&v)[V], float* to) {
  SPARSE_UNROLL
  for (int r = 0; r < V; r++) store(to + r * W, v[r]);
}
template <int V> static inline void put(const vf (&v)[V], float* to, const int64_t* at) {
  SPARSE_UNROLL
  for (int r = 0; r < V; r++) store(to + at[r], v[r]);
}

// A pass: what apply and gradient know of it.
struct Pass {
  const Tiles& tiles;
  const ConvWeights& w;
  const int32_t* at;
  Pass(const Tiles& tiles, const ConvWeights& w) : tiles(tiles), w(w), at(w.at ? w.at : w.starts) {}
};

// The outputs of a tile whose rows have one visit each: sums stay in registers.
template <int V>
void apply_once(const Pass& p, const Tiles::Tile& tile, const float* x, const float* weights, const float* bias,
                float* y, float*) {
  const ConvWeights& w = p.w;
  const bool plain = p.tiles.plain(tile);
  float vectors[V * W];
  for (int64_t k = 0; k < w.visits; k++) {
    const int32_t first = w.starts[k], row = w.order[k];
    float* to = y + row * p.tiles.y.plane_size;
    vf sum[V];
    SPARSE_UNROLL
    for (int r = 0; r < V; r++) sum[r] = splat(bias ? bias[row] : 0.0f);
    accumulate<V>(x + tile.input, w.offsets + first, weights + p.at[k], w.starts[k + 1] - first, sum);
    if (plain) {
      put(sum, to + tile.output, p.tiles.at);
    } else {
      put(sum, vectors);
      give(p.tiles, tile, vectors, to);
    }
  }
}

// The outputs of a tile by way of sums [rows][TILE].
template <int V>
void apply_blocks(const Pass& p, const Tiles::Tile& tile, const float* x, const float* weights, const float* bias,
                  float* y, float* sums) {
  const ConvWeights& w = p.w;
  const bool plain = p.tiles.plain(tile);
  for (int64_t o = 0; o < w.rows; o++) {
    const vf start = splat(bias ? bias[o] : 0.0f);
    SPARSE_UNROLL
    for (int r = 0; r < V; r++) store(sums + o * TILE + r * W, start);
  }
  for (int64_t k = 0; k < w.visits; k++) {
    const int32_t first = w.starts[k], n = w.starts[k + 1] - first;
    if (!n) continue;
    float* at = sums + w.order[k] * TILE;
    vf sum[V];
    SPARSE_UNROLL
    for (int r = 0; r < V; r++) sum[r] = load(at + r * W);
    accumulate<V>(x + tile.input, w.offsets + first, weights + p.at[k], n, sum);
    put(sum, at);
  }
  for (int64_t o = 0; o < w.rows; o++) {
    const float* from = sums + o * TILE;
    float* to = y + o * p.tiles.y.plane_size;
    if (plain)
      for (int r = 0; r < V; r++) store(to + tile.output + p.tiles.at[r], load(from + r * W));
    else
      give(p.tiles, tile, from, to);
  }
}

template <int V> static inline vf dot(const vf (&d)[V], const float* x) {
  constexpr int CHAINS = V > 4 ? 2 : 1;
  vf sum[2] = {d[0] * load(x)};
  SPARSE_UNROLL
  for (int r = 1; r < V; r++) sum[r % CHAINS] += d[r] * load(x + r * W);
  return CHAINS > 1 ? sum[0] + sum[1] : sum[0];
}

// gradients += for n weights of one row, the output gradient (a tile) times their shifted input; or = in the first
// tile.
template <int V>
static inline void correlate(const float* x, const uint32_t* offsets, const vf (&d)[V], int n, bool first,
                             float* gradients) {
  const float zero[4] = {};
  for (; n >= 4; n -= 4, offsets += 4, gradients += 4) {
    const Four from(x, offsets);
    const vf sums[4] = {dot(d, from.at[0]), dot(d, from.at[1]), dot(d, from.at[2]), dot(d, from.at[3])};
    add_sums(gradients, sums, first ? zero : gradients);
  }
  for (; n > 0; n--, offsets++, gradients++)
    *gradients = (first ? 0.0f : *gradients) + sum_lanes(dot(d, moved(x, *offsets)));
}

// x of n weights of one row, each at its offset, += the weight times d.
template <int V> void spread(const uint32_t* offsets, const float* weights, int n, const vf (&d)[V], float* x) {
  const auto add = [&](vf w, const float* at) {
    float* to = const_cast<float*>(at);
    SPARSE_UNROLL
    for (int r = 0; r < V; r++) store(to + r * W, load(to + r * W) + w * d[r]);
  };
  for (; n >= 4; n -= 4, offsets += 4, weights += 4) {
    const Four to(x, offsets);
    const Weights w(weights);
    add(w.get<0>(), to.at[0]);
    add(w.get<1>(), to.at[1]);
    add(w.get<2>(), to.at[2]);
    add(w.get<3>(), to.at[3]);
  }
  for (; n > 0; n--, offsets++, weights++) add(splat(*weights), moved(x, *offsets));
}

// dx of a block of input channels: the rows pass by, group after group.
template <int V>
void scatter_block(const ConvPlanes& p, const ConvWeights& w, int64_t block, int64_t group, int64_t b, const float* dy,
                   const float* weights, float* dx) {
  const int32_t* at = w.at ? w.at : w.starts;
  const int64_t first = b * block, channels = smaller(block, p.channels - first), blocks = w.visits / w.rows;
  const bool direct = p.plane_size == p.batch && p.batch % W == 0;
  const Scratch<float> memory(direct ? 0 : channels * p.plane_size, "a block of a linear layer's input gradients");
  float* x = direct ? dx + first * p.batch : memory;
  memset(x, 0, channels * p.plane_size * sizeof(float));
  float* base = x - first * p.plane_size;
  for (int64_t row = 0; row < w.rows; row += group) {
    const int64_t size = smaller(group, w.rows - row), k0 = row * blocks + b * size;
    for (int64_t k = k0; k < k0 + size; k++) {
      const int32_t start = w.starts[k], n = w.starts[k + 1] - start;
      if (!n) continue;
      vf d[V];  // beyond the batch are columns of another row, which nobody reads; beyond the last row is nothing
      for (int r = 0; r < V; r++) d[r] = load_until(dy + w.order[k] * p.batch + r * W, dy + w.rows * p.batch);
      spread<V>(w.offsets + start, weights + at[k], n, d, base);
    }
  }
  for (int64_t c = 0; c < channels && !direct; c++) copy(dx + (first + c) * p.batch, x + c * p.plane_size, p.batch);
}

// The weight gradients of visits lo to hi of a tile. dy: the output gradients under it, of `row_size` floats a row,
// whose vectors are at `at`.
template <int V>
void gradient_tile(const Pass& p, int64_t lo, int64_t hi, const float* x, const float* dy, int64_t row_size,
                   const int64_t* at, bool first, float* gradients) {
  const ConvWeights& w = p.w;
  for (int64_t k = lo; k < hi; k++) {
    const int32_t start = w.starts[k], n = w.starts[k + 1] - start;
    const float* row = dy + w.order[k] * row_size;
    vf d[V];
    SPARSE_UNROLL
    for (int r = 0; r < V; r++) d[r] = load(row + at[r]);
    correlate<V>(x, w.offsets + start, d, n, first, gradients + p.at[k]);
  }
}

// The weight gradients of visits lo to hi, tile after tile. Output gradients that every block of channels reads again
// are brought together first: in the tensor, rows are often a power of two apart and share few cache sets.
void gradient(const Pass& p, int64_t lo, int64_t hi, const float* x, const float* dy, float* gradients) {
  constexpr decltype(&gradient_tile<1>) RUN[] = SPARSE_KERNELS(gradient_tile);
  const Tiles& tiles = p.tiles;
  const Scratch<float> memory(p.w.rows * TILE, "a tile of a convolution's output gradients");
  float* vectors = memory;
  int64_t together[R];
  for (int r = 0; r < R; r++) together[r] = r * W;
  for (int64_t i = 0; i < tiles.count; i++) {
    const Tiles::Tile tile = tiles[i];
    const bool plain = tiles.plain(tile), in_place = plain && p.w.visits == p.w.rows;
    for (int64_t o = 0; o < p.w.rows && !in_place; o++) {
      const float* from = dy + o * tiles.y.plane_size;
      float* to = vectors + o * TILE;
      if (plain)
        for (int r = 0; r < tile.vectors; r++) store(to + r * W, load(from + tile.output + tiles.at[r]));
      else
        take(tiles, tile, from, to);
    }
    RUN[tile.vectors - 1](p, lo, hi, x + tile.input, in_place ? dy + tile.output : vectors,
                          in_place ? tiles.y.plane_size : TILE, in_place ? tiles.at : together, i == 0, gradients);
  }
}

}  // namespace

int conv_tile() { return TILE; }

int conv_vector() { return W; }

void conv_planes(ConvPlanes p, const float* x, float* out, int threads) {
  parallel_for(p.chunks * p.channels, threads, [&](int64_t i) {
    const int64_t n0 = i / p.channels * p.lanes, n = p.batch - n0 < p.lanes ? p.batch - n0 : p.lanes;
    const float* from = x + i % p.channels * p.height * p.width * p.batch + n0;
    float* to = out + i * p.phases * p.phases * p.plane_size;
    for (int64_t a = 0; a < p.phases; a++)
      for (int64_t b = 0; b < p.phases; b++, to += p.plane_size) {
        float* row = to;
        for (int64_t r = 0; r < p.rows; r++, row += p.columns * p.lanes) {
          const int64_t h = (r - p.top) * p.stride + a;
          const int64_t first = p.left;  // columns before it and from last on are border
          int64_t last = first + (p.width - b + p.stride - 1) / p.stride;
          last = last < p.columns ? last : p.columns;
          if (r < p.top || h >= p.height || last <= first) {
            clear(row, p.columns * p.lanes);
            continue;
          }
          clear(row, first * p.lanes);
          const float* line = from + (h * p.width + b) * p.batch;
          if (p.stride == 1 && n == p.lanes && p.batch == p.lanes) {
            copy(row + first * p.lanes, line, (last - first) * p.lanes);
          } else {
            for (int64_t c = first; c < last; c++, line += p.stride * p.batch) {
              if (n < p.lanes) clear(row + c * p.lanes, p.lanes);  // whole vectors: faster than what is left
              copy(row + c * p.lanes, line, n);
            }
          }
          clear(row + last * p.lanes, (p.columns - last) * p.lanes);
        }
        clear(row, p.plane_size - p.rows * p.columns * p.lanes);
      }
  });
}

void conv_apply(ConvPlanes planes, ConvWeights w, ConvOutput out, const float* x, const float* weights,
                const float* bias, float* y, int threads) {
  constexpr decltype(&apply_once<1>) ONCE[] = SPARSE_KERNELS(apply_once), BLOCKS[] = SPARSE_KERNELS(apply_blocks);
  const Tiles tiles(planes, out);
  const Pass pass(tiles, w);
  const bool once = w.visits == w.rows;
  share_tiles(tiles.count, threads, [&](int64_t first, int64_t last) {
    const Scratch<float> sums(once ? 0 : w.rows * TILE, "the sums of a tile of a convolution");
    for (int64_t i = first; i < last; i++) {
      const Tiles::Tile tile = tiles[i];
      (once ? ONCE : BLOCKS)[tile.vectors - 1](pass, tile, x, weights, bias, y, sums);
    }
  });
}

// dx [channels][batch] of a linear layer whose batch is within a tile.
void conv_scatter(ConvPlanes planes, ConvWeights w, int64_t block, int64_t group, const float* dy, const float* weights,
                  float* dx, int threads) {
  constexpr decltype(&scatter_block<1>) RUN[] = SPARSE_KERNELS(scatter_block);
  const auto run = RUN[(planes.batch + W - 1) / W - 1];
  parallel_for(w.visits / w.rows, threads, [&](int64_t b) { run(planes, w, block, group, b, dy, weights, dx); });
}

void conv_gradient(ConvPlanes planes, ConvWeights w, ConvOutput out, const float* x, const float* dy, float* gradients,
                   int threads) {
  const Tiles tiles(planes, out);
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
