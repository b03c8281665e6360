#include "program/layer_steps.h"

#include <math.h>
#include <string.h>

namespace sparsefl::program {
namespace {

const float* parameter(const Run& r, int64_t at) { return at < 0 ? nullptr : r.model.rest + at; }
float* gradient(const Run& r, int64_t at) { return at < 0 ? nullptr : r.drest + at; }

// The samples of rows of `lanes` columns, side by side; and back, with zeros in the other columns.
template <typename T> void compact(const T* x, int64_t rows, int64_t lanes, int64_t samples, T* to) {
  for (int64_t i = 0; i < rows; i++) memcpy(to + i * samples, x + i * lanes, samples * sizeof(T));
}
template <typename T> void expand(const T* x, int64_t rows, int64_t lanes, int64_t samples, T* to) {
  for (int64_t i = 0; i < rows; i++) {
    memcpy(to + i * lanes, x + i * samples, samples * sizeof(T));
    memset(static_cast<void*>(to + i * lanes + samples), 0, (lanes - samples) * sizeof(T));
  }
}

}  // namespace

void GroupNorm::run(Run& r) const {
  with_images(r, [&](auto m) {
    m.op(r.ops.group_norm, r.ops.group_norm_bf16)(shape, m[x], parameter(r, gamma), parameter(r, beta), eps, relu, m[y],
                                                  r.work + mean, r.work + rstd, r.threads);
  });
}

void GroupNormBackward::run(Run& r) const {
  with_images(r, [&](auto m) {
    m.op(r.ops.group_norm_backward, r.ops.group_norm_backward_bf16)(
        shape, m[dy], m[x], r.work + mean, r.work + rstd, parameter(r, gamma), parameter(r, beta), relu, m[dx],
        gradient(r, gamma), gradient(r, beta), r.threads);
  });
}

void BatchNorm::run(Run& r) const {
  const bool train = r.training || running_mean < 0;
  float *mu = r.work + mean, *inverse = r.work + rstd;
  RunningStatistics running{nullptr, nullptr, momentum};
  if (r.training && running_mean >= 0) {
    if (count >= 0) r.model.integers[count]++;
    running = {r.model.rest + running_mean, r.model.rest + running_var,
               momentum < 0 ? 1.0 / double(count < 0 ? 1 : r.model.integers[count]) : momentum};
  }
  if (!train)
    for (int64_t c = 0; c < shape.channels; c++) {
      mu[c] = r.model.rest[running_mean + c];
      inverse[c] = 1 / sqrtf(r.model.rest[running_var + c] + float(eps));
    }
  with_images(r, [&](auto m) {
    NormShape s = shape;
    const auto* from = m[x];
    auto* to = m[y];
    const int64_t rows = shape.channels * shape.size;
    const bool part = train && r.samples < shape.batch;
    if (part) {
      s.batch = r.samples;
      compact(from, rows, shape.batch, r.samples, m[scratch]);
      from = m[scratch], to = m[scratch] + rows * shape.batch;
    }
    m.op(r.ops.batch_norm, r.ops.batch_norm_bf16)(s, from, parameter(r, gamma), parameter(r, beta), eps, relu, train,
                                                  running, to, mu, inverse, r.threads);
    if (part) expand(to, rows, shape.batch, r.samples, m[y]);
  });
}

void BatchNormBackward::run(Run& r) const {
  with_images(r, [&](auto m) {
    NormShape s = shape;
    const auto *dy_at = m[dy], *x_at = m[x];
    auto* dx_at = m[dx];
    const int64_t rows = shape.channels * shape.size, size = rows * shape.batch;
    const bool part = r.samples < shape.batch;
    if (part) {
      s.batch = r.samples;
      auto* copy = m[scratch];
      compact(dy_at, rows, shape.batch, r.samples, copy);
      compact(x_at, rows, shape.batch, r.samples, copy + size);
      dy_at = copy, x_at = copy + size, dx_at = copy + 2 * size;
    }
    m.op(r.ops.batch_norm_backward, r.ops.batch_norm_backward_bf16)(
        s, dy_at, x_at, r.work + mean, r.work + rstd, parameter(r, gamma), parameter(r, beta), relu, true, dx_at,
        gradient(r, gamma), gradient(r, beta), r.threads);
    if (part) expand(dx_at, rows, shape.batch, r.samples, m[dx]);
  });
}

void MaxPool::run(Run& r) const {
  void* at = r.work + index;
  const int64_t size = shape.channels * shape.height.out * shape.width.out * shape.batch;
  with_images(r, [&](auto m) {
    m.op(r.ops.max_pool, r.ops.max_pool_bf16)(shape, m[x], m[y], wide ? nullptr : static_cast<uint8_t*>(at),
                                              wide ? static_cast<int32_t*>(at) : nullptr, r.threads);
    if (relu) m.op(r.ops.relu, r.ops.relu_bf16)(m[y], m[y], size, r.threads);
  });
}

void MaxPoolBackward::run(Run& r) const {
  const void* at = r.work + index;
  with_images(r, [&](auto m) {
    m.op(r.ops.max_pool_backward, r.ops.max_pool_backward_bf16)(
        shape, m[dy], wide ? nullptr : static_cast<const uint8_t*>(at),
        wide ? static_cast<const int32_t*>(at) : nullptr, m[dx], r.threads);
  });
}

void AveragePool::run(Run& r) const {
  with_images(r, [&](auto m) {
    if (backward)
      m.op(r.ops.average_pool_backward, r.ops.average_pool_backward_bf16)(shape, m[x], m[y], r.threads);
    else
      m.op(r.ops.average_pool, r.ops.average_pool_bf16)(shape, m[x], m[y], r.threads);
  });
}

void Relu::run(Run& r) const {
  with_images(r, [&](auto m) {
    if (other < 0)
      m.op(r.ops.relu, r.ops.relu_bf16)(m[x], m[y], size, r.threads);
    else
      m.op(r.ops.add_relu, r.ops.add_relu_bf16)(m[x], m[other], m[y], size, r.threads);
  });
}

void ReluBackward::run(Run& r) const {
  with_images(
      r, [&](auto m) { m.op(r.ops.relu_backward, r.ops.relu_backward_bf16)(m[y], m[dy], m[dx], size, r.threads); });
}

void Add::run(Run& r) const {
  with_images(r, [&](auto m) { m.op(r.ops.add, r.ops.add_bf16)(m[a], m[b], m[y], size, r.threads); });
}

void BiasGradient::run(Run& r) const {
  with_images(r, [&](auto m) {
    m.op(r.ops.bias_gradient, r.ops.bias_gradient_bf16)(channels, size, m[dy], r.drest + bias, r.threads);
  });
}

namespace {

// Logits as floats: where they lie, or in `to`.
const float* floats(const Run& r, int64_t place, int64_t n, float* to) {
  if (!r.bf16) return r.work + place;
  r.ops.widen(Images<bf16>{r}[place], to, n, r.threads);
  return to;
}

}  // namespace

void Loss::run(Run& r) const {
  const int64_t size = classes * lanes;
  float *losses = r.work + scratch, *packed = losses + lanes, *gradients = packed + size, *wide = gradients + size;
  const float* from = floats(r, logits, size, wide);
  float* to = r.bf16 ? wide : r.work + dlogits;
  if (r.samples == lanes) {
    r.loss = r.ops.cross_entropy(classes, lanes, from, r.labels, losses, r.bf16 ? gradients : to, r.threads);
    if (r.bf16) to = gradients;
  } else {
    compact(from, classes, lanes, r.samples, packed);
    r.loss = r.ops.cross_entropy(classes, r.samples, packed, r.labels, losses, gradients, r.threads);
    expand(gradients, classes, lanes, r.samples, to);
  }
  if (r.bf16) r.ops.narrow(to, Images<bf16>{r}[dlogits], size, r.threads);
}

void Correct::run(Run& r) const {
  float *packed = r.work + scratch, *wide = packed + classes * lanes;
  const float* from = floats(r, logits, classes * lanes, wide);
  if (r.samples < lanes) {
    compact(from, classes, lanes, r.samples, packed);
    from = packed;
  }
  r.correct += r.ops.count_correct(classes, r.samples, from, r.labels, r.threads);
}

void Drop::run(Run& r) const {
  const Dropout how{p, r.seeds[number], r.pass};
  with_images(r, [&](auto m) { m.op(r.ops.dropout, r.ops.dropout_bf16)(how, elements, lanes, m[x], m[y], r.threads); });
}

}  // namespace sparsefl::program
