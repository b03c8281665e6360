// Batch normalisation on batch-last tensors [channel][position][batch], forward and backward.
//
// A channel is one run of floats: a matrix of 32 columns, and a rest.
#include "core/ops.h"
#include "core/parallel.h"
#include "layers/norm.h"

namespace SPARSE_ISA {
namespace {

// The parts of a channel of batch norm: rows of 32 columns, and a rest of fewer.
struct Part {
  int64_t at;
  Matrix matrix;
};
struct Parts {
  Part all[2];
  int count = 0;
  explicit Parts(int64_t length) {
    const int64_t rest = length % NARROW;
    if (length >= NARROW) all[count++] = {0, {length / NARROW, NARROW, NARROW}};
    if (rest) all[count++] = {length - rest, {1, rest, rest}};
  }
  const Part* begin() const { return all; }
  const Part* end() const { return all + count; }
};

inline void fill(float* p, float value) {
  for (int64_t i = 0; i < NARROW; i++) p[i] = value;
}

template <typename T>
void forward(const NormShape& s, const T* x, const float* gamma, const float* beta, double eps, bool relu,
             bool training, const RunningStatistics& running, T* y, float* mean, float* rstd, int threads) {
  const int64_t length = s.size * s.batch;
  const Parts parts(length);
  parallel_for(s.channels, threads, [&](int64_t channel) {
    const int64_t at = channel * length;
    if (training) {
      double means[2][SLOTS], squares[2][SLOTS], all = 0, square = 0;
      int i = 0;
      for (const Part& p : parts) {
        moments(p.matrix, x + at + p.at, means[i], squares[i]);
        for (int64_t j = 0; j < p.matrix.columns; j++) all += p.matrix.rows * means[i][j];
        i++;
      }
      all /= length, i = 0;
      for (const Part& p : parts) {
        for (int64_t j = 0; j < p.matrix.columns; j++)
          square += squares[i][j] + p.matrix.rows * (means[i][j] - all) * (means[i][j] - all);
        i++;
      }
      mean[channel] = float(all);
      rstd[channel] = float(1 / __builtin_sqrt(square / length + eps));
      if (running.mean) running.mean[channel] += float(running.momentum * (all - running.mean[channel]));
      if (running.var) running.var[channel] += float(running.momentum * (square / (length - 1) - running.var[channel]));
    }
    float mu[NARROW], inverse[NARROW];
    fill(mu, mean[channel]), fill(inverse, rstd[channel]);
    const Affine f(mu, inverse, gamma, beta, channel);
    with_flag(relu, [&](auto flag) {
      for (const Part& p : parts) apply<decltype(flag)::value>(p.matrix, f, x + at + p.at, y + at + p.at);
    });
  });
}

template <typename T>
void backward(const NormShape& s, const T* dy, const T* x, const float* mean, const float* rstd, const float* gamma,
              const float* beta, bool relu, bool training, T* dx, float* dgamma, float* dbeta, int threads) {
  const int64_t length = s.size * s.batch;
  const Parts parts(length);
  parallel_for(s.channels, threads, [&](int64_t channel) {
    const int64_t at = channel * length;
    float mu[NARROW], inverse[NARROW], a[NARROW], b[NARROW], ones[SLOTS], products[SLOTS];
    fill(mu, mean[channel]), fill(inverse, rstd[channel]);
    const Affine f(mu, inverse, gamma, beta, channel);
    double scale = 0, shift = 0;
    with_flag(relu, [&](auto flag) {
      constexpr bool with_relu = decltype(flag)::value;
      for (const Part& p : parts) {
        sums<with_relu>(p.matrix, f, x + at + p.at, dy + at + p.at, ones, products);
        shift += total(ones, p.matrix.columns), scale += rstd[channel] * total(products, p.matrix.columns);
      }
      const double along = training ? f.gamma * rstd[channel] / double(length) : 0;
      fill(a, float(along * shift)), fill(b, float(along * rstd[channel] * scale));
      for (const Part& p : parts)
        input_gradient<with_relu>(p.matrix, f, a, b, x + at + p.at, dy + at + p.at, dx + at + p.at);
    });
    if (dgamma) dgamma[channel] = float(scale);
    if (dbeta) dbeta[channel] = float(shift);
  });
}

}  // namespace

void batch_norm(NormShape s, const float* x, const float* gamma, const float* beta, double eps, bool relu,
                bool training, RunningStatistics running, float* y, float* mean, float* rstd, int threads) {
  forward(s, x, gamma, beta, eps, relu, training, running, y, mean, rstd, threads);
}

void batch_norm_bf16(NormShape s, const bf16* x, const float* gamma, const float* beta, double eps, bool relu,
                     bool training, RunningStatistics running, bf16* y, float* mean, float* rstd, int threads) {
  forward(s, x, gamma, beta, eps, relu, training, running, y, mean, rstd, threads);
}

void batch_norm_backward(NormShape s, const float* dy, const float* x, const float* mean, const float* rstd,
                         const float* gamma, const float* beta, bool relu, bool training, float* dx, float* dgamma,
                         float* dbeta, int threads) {
  backward(s, dy, x, mean, rstd, gamma, beta, relu, training, dx, dgamma, dbeta, threads);
}

void batch_norm_backward_bf16(NormShape s, const bf16* dy, const bf16* x, const float* mean, const float* rstd,
                              const float* gamma, const float* beta, bool relu, bool training, bf16* dx, float* dgamma,
                              float* dbeta, int threads) {
  backward(s, dy, x, mean, rstd, gamma, beta, relu, training, dx, dgamma, dbeta, threads);
}

}  // namespace SPARSE_ISA
