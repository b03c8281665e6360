// Softmax with cross-entropy on batch-last logits [class][sample]: vectors are samples, so nothing is summed across
// one.
#include "core/ops.h"
#include "core/parallel.h"
#include "layers/columns.h"
#include "layers/exponential.h"

namespace SPARSE_ISA {
namespace {

constexpr int64_t SAMPLES = 128;  // that a thread takes at a time; the last takes what is left, too

// Calls use(first sample, samples) until every sample had its turn. No two calls share one.
template <typename Use> void for_samples(int64_t batch, int threads, Use use) {
  const int64_t parts = batch < SAMPLES ? 1 : batch / SAMPLES;
  parallel_for(parts, threads, [&](int64_t i) { use(i * SAMPLES, (i + 1 < parts ? SAMPLES : batch - i * SAMPLES)); });
}

// Of some samples: sum of e^(x - largest) over the classes, and the largest; with dx, the softmax over `batch`.
template <bool gradient, typename Block>
void softmax(const Block& c, int64_t classes, int64_t batch, const float* x, float* dx, float* sums, float* tops) {
  constexpr int K = Block::K;
  vf top[K], sum[K];
  for (int k = 0; k < K; k++) top[k] = c.get(x, k), sum[k] = vf{};
  for (int64_t i = 1; i < classes; i++)
    for (int k = 0; k < K; k++) {
      const vf v = c.get(x + i * batch, k);
      top[k] = (v > top[k]) | (v != v) ? v : top[k];  // a NaN stays
    }
  for (int64_t i = 0; i < classes; i++)
    for (int k = 0; k < K; k++) {
      const vf e = exponential(c.get(x + i * batch, k) - top[k]);
      sum[k] += e;
      if (gradient) c.put(dx + i * batch, k, e);
    }
  if (gradient) {
    vf share[K], e[K];
    for (int k = 0; k < K; k++) share[k] = 1.0f / (sum[k] * float(batch));
    for (int64_t i = 0; i < classes; i++) {  // vectors may overlap: all are read before one is written
      for (int k = 0; k < K; k++) e[k] = c.get(dx + i * batch, k);
      for (int k = 0; k < K; k++) c.put(dx + i * batch, k, e[k] * share[k]);
    }
  }
  for (int k = 0; k < K; k++) c.put(sums, k, sum[k]), c.put(tops, k, top[k]);
}

// The first largest, as torch.argmax: the first NaN, if there is one.
template <typename Block>
void first_largest(const Block& c, int64_t classes, int64_t batch, const float* x, int32_t* at) {
  constexpr int K = Block::K;
  vf best[K];
  vi found[K];
  for (int k = 0; k < K; k++) best[k] = c.get(x, k), found[k] = vi{};
  for (int64_t i = 1; i < classes; i++)
    for (int k = 0; k < K; k++) {
      const vf v = c.get(x + i * batch, k);
      const vi take = (v > best[k]) | ((v != v) & (best[k] == best[k]));
      best[k] = take ? v : best[k];
      found[k] = take ? splat(int32_t(i)) : found[k];
    }
  for (int k = 0; k < K; k++) c.put(at, k, found[k]);
}

}  // namespace

double cross_entropy(int64_t classes, int64_t batch, const float* x, const int64_t* labels, float* losses, float* dx,
                     int threads) {
  for_samples(batch, threads, [&](int64_t first, int64_t samples) {
    float sums[2 * SAMPLES], tops[2 * SAMPLES];
    each_block(samples, [&](auto c) {
      with_flag(dx, [&](auto gradient) {
        softmax<gradient.value>(c, classes, batch, x + first, dx ? dx + first : nullptr, sums, tops);
      });
    });
    for (int64_t n = 0; n < samples; n++) {
      const int64_t at = labels[first + n] * batch + first + n;
      losses[first + n] = float(__builtin_log(double(sums[n])) + (double(tops[n]) - x[at]));
      if (dx) dx[at] -= 1.0f / batch;
    }
  });
  double total = 0;
  for (int64_t n = 0; n < batch; n++) total += losses[n];
  return total / batch;
}

int64_t count_correct(int64_t classes, int64_t batch, const float* x, const int64_t* labels, int threads) {
  int64_t correct = 0;
  for_samples(batch, threads, [&](int64_t first, int64_t samples) {
    int32_t found[2 * SAMPLES];
    each_block(samples, [&](auto c) { first_largest(c, classes, batch, x + first, found); });
    int64_t here = 0;
    for (int64_t n = 0; n < samples; n++) here += found[n] == labels[first + n];
    __atomic_fetch_add(&correct, here, __ATOMIC_RELAXED);
  });
  return correct;
}

}  // namespace SPARSE_ISA
