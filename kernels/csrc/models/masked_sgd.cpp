// Masked SGD over packed values:  d = s g + lambda w,  u = mu u + d,  w -= eta (d + mu u | u).
// One streaming pass; a dense gradient is first compressed, a block at a time, through the bitmap into L1.
#include "core/ops.h"
#include "core/parallel.h"
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

constexpr int64_t CHUNK = 1 << 16;  // entries a thread takes at a time
constexpr int BLOCK = 1024;         // gathered gradients that wait in L1

template <bool momentum, bool nesterov> struct Step {
  vf lr, mu, lambda, s;
  explicit Step(const Sgd& c)
      : lr(splat(c.lr)), mu(splat(c.momentum)), lambda(splat(c.weight_decay)), s(splat(c.scale)) {}

  void operator()(vf& w, vf g, vf& u) const {
    vf d = s * g + lambda * w;
    if (momentum) {
      u = mu * u + d;
      d = nesterov ? d + mu * u : u;
    }
    w -= lr * d;
  }

  void run(float* w, const float* g, float* u, int64_t n) const {
    constexpr int UNROLL = 4;
    const Step step = *this;  // a copy that no store to w can change: it stays in registers
    vf none = {};
    int64_t i = 0;
    for (; i + UNROLL * W <= n; i += UNROLL * W)
      for (int r = 0; r < UNROLL; r++) {
        const int64_t at = i + r * W;
        vf a = load(w + at), b = momentum ? load(u + at) : none;
        step(a, load(g + at), b);
        store(w + at, a);
        if (momentum) store(u + at, b);
      }
    for (; i < n; i += W) {
      const int64_t left = n - i < W ? n - i : W;
      vf a = load_first(w + i, left), b = momentum ? load_first(u + i, left) : none;
      step(a, load_first(g + i, left), b);
      store_first(w + i, a, left);
      if (momentum) store_first(u + i, b, left);
    }
  }
};

template <typename Use> void with_step(const Sgd& c, const float* u, Use use) {
  if (!u)
    use(Step<false, false>(c));
  else if (c.nesterov)
    use(Step<true, true>(c));
  else
    use(Step<true, false>(c));
}

// One segment: the gradient of its stored entries, collected in blocks.
template <typename Step>
void through(const Step& step, float* w, const float* g, float* u, const uint64_t* words, int64_t size) {
  float block[BLOCK + 64];
  int filled = 0;
  const float* end = g + size;
  for (int64_t i = 0; i * 64 < size; i++) {
    uint64_t m = words[i];
    const float* from = g + i * 64;
    for (int k = 0; k < STEPS && m; k++, m >>= W, from += W) {
      const uint32_t bits = m & ALL;
      store(block + filled, compress(load_until(from, end), bits));
      filled += popcount(bits);
    }
    if (filled > BLOCK - 64 || (i + 1) * 64 >= size) {
      step.run(w, block, u, filled);
      w += filled, u += u ? filled : 0;
      filled = 0;
    }
  }
}

}  // namespace

void masked_sgd(float* w, const float* g, float* u, int64_t n, Sgd c, int threads) {
  with_step(c, u, [&](auto step) {
    parallel_for((n + CHUNK - 1) / CHUNK, threads, [&](int64_t i) {
      const int64_t lo = i * CHUNK, count = n - lo < CHUNK ? n - lo : CHUNK;
      step.run(w + lo, g + lo, u ? u + lo : u, count);
    });
  });
}

void masked_sgd_through(float* w, const float* g, float* u, const uint64_t* words, const int64_t* offsets,
                        Segments segments, Sgd c, int threads) {
  with_step(c, u, [&](auto step) {
    parallel_for(segments.count, threads, [&](int64_t l) {
      through(step, w + offsets[l], g + segments.dense[l], u ? u + offsets[l] : u, words + segments.starts[l],
              segments.dense[l + 1] - segments.dense[l]);
    });
  });
}

}  // namespace SPARSE_ISA
