#include "program/layer_steps.h"

#include <math.h>
#include <string.h>

namespace sparsefl::program {
namespace {

const float* parameter(const Run& r, int64_t at) { return at < 0 ? nullptr : r.model.rest + at; }
float* gradient(const Run& r, int64_t at) { return at < 0 ? nullptr : r.drest + at; }

// The samples of rows of `lanes` columns, side by side; and back, with zeros in the other columns.
void compact(const float* x, int64_t rows, int64_t lanes, int64_t samples, float* to) {
  for (int64_t i = 0; i < rows; i++) memcpy(to + i * samples, x + i * lanes, samples * sizeof(float));
}
void expand(const float* x, int64_t rows, int64_t lanes, int64_t samples, float* to) {
  for (int64_t i = 0; i < rows; i++) {
    memcpy(to + i * lanes, x + i * samples, samples * sizeof(float));
    memset(to + i * lanes + samples, 0, (lanes - samples) * sizeof(float));
  }
}

}  // namespace

void GroupNorm::run(Run& r) const {
  r.ops.group_norm(shape, r.work + x, parameter(r, gamma), parameter(r, beta), eps, relu, r.work + y, r.work + mean,
                   r.work + rstd, r.threads);
}

void GroupNormBackward::run(Run& r) const {
  r.ops.group_norm_backward(shape, r.work + dy, r.work + x, r.work + mean, r.work + rstd, parameter(r, gamma),
                            parameter(r, beta), relu, r.work + dx, gradient(r, gamma), gradient(r, beta), r.threads);
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
  NormShape s = shape;
  const float* from = r.work + x;
  float* to = r.work + y;
  const int64_t rows = shape.channels * shape.size;
  const bool part = train && r.samples < shape.batch;
  if (part) {
    s.batch = r.samples;
    compact(from, rows, shape.batch, r.samples, r.work + scratch);
    from = r.work + scratch, to = r.work + scratch + rows * shape.batch;
  }
  r.ops.batch_norm(s, from, parameter(r, gamma), parameter(r, beta), eps, relu, train, running, to, mu, inverse,
                   r.threads);
  if (part) expand(to, rows, shape.batch, r.samples, r.work + y);
}

void BatchNormBackward::run(Run& r) const {
  NormShape s = shape;
  const float *dy_at = r.work + dy, *x_at = r.work + x;
  float* dx_at = r.work + dx;
  const int64_t rows = shape.channels * shape.size, size = rows * shape.batch;
  const bool part = r.samples < shape.batch;
  if (part) {
    s.batch = r.samples;
    float* copy = r.work + scratch;
    compact(dy_at, rows, shape.batch, r.samples, copy);
    compact(x_at, rows, shape.batch, r.samples, copy + size);
    dy_at = copy, x_at = copy + size, dx_at = copy + 2 * size;
  }
  r.ops.batch_norm_backward(s, dy_at, x_at, r.work + mean, r.work + rstd, parameter(r, gamma), parameter(r, beta), relu,
                            true, dx_at, gradient(r, gamma), gradient(r, beta), r.threads);
  if (part) expand(dx_at, rows, shape.batch, r.samples, r.work + dx);
}

void MaxPool::run(Run& r) const {
  void* at = r.work + index;
  r.ops.max_pool(shape, r.work + x, r.work + y, wide ? nullptr : static_cast<uint8_t*>(at),
                 wide ? static_cast<int32_t*>(at) : nullptr, r.threads);
  const int64_t size = shape.channels * shape.height.out * shape.width.out * shape.batch;
  if (relu) r.ops.relu(r.work + y, r.work + y, size, r.threads);
}

void MaxPoolBackward::run(Run& r) const {
  const void* at = r.work + index;
  r.ops.max_pool_backward(shape, r.work + dy, wide ? nullptr : static_cast<const uint8_t*>(at),
                          wide ? static_cast<const int32_t*>(at) : nullptr, r.work + dx, r.threads);
}

void AveragePool::run(Run& r) const {
  if (backward)
    r.ops.average_pool_backward(shape, r.work + x, r.work + y, r.threads);
  else
    r.ops.average_pool(shape, r.work + x, r.work + y, r.threads);
}

void Relu::run(Run& r) const {
  if (other < 0)
    r.ops.relu(r.work + x, r.work + y, size, r.threads);
  else
    r.ops.add_relu(r.work + x, r.work + other, r.work + y, size, r.threads);
}

void ReluBackward::run(Run& r) const { r.ops.relu_backward(r.work + y, r.work + dy, r.work + dx, size, r.threads); }

void Add::run(Run& r) const { r.ops.add(r.work + a, r.work + b, r.work + y, size, r.threads); }

void BiasGradient::run(Run& r) const { r.ops.bias_gradient(channels, size, r.work + dy, r.drest + bias, r.threads); }

void Loss::run(Run& r) const {
  const float* from = r.work + logits;
  float *losses = r.work + scratch, *to = r.work + dlogits;
  if (r.samples == lanes) {
    r.loss = r.ops.cross_entropy(classes, lanes, from, r.labels, losses, to, r.threads);
    return;
  }
  float *packed = losses + lanes, *gradients = packed + classes * lanes;
  compact(from, classes, lanes, r.samples, packed);
  r.loss = r.ops.cross_entropy(classes, r.samples, packed, r.labels, losses, gradients, r.threads);
  expand(gradients, classes, lanes, r.samples, to);
}

void Correct::run(Run& r) const {
  const float* from = r.work + logits;
  if (r.samples < lanes) {
    compact(from, classes, lanes, r.samples, r.work + scratch);
    from = r.work + scratch;
  }
  r.correct += r.ops.count_correct(classes, r.samples, from, r.labels, r.threads);
}

void Drop::run(Run& r) const {
  r.ops.dropout({p, r.seeds[number], r.pass}, elements, lanes, r.work + x, r.work + y, r.threads);
}

}  // namespace sparsefl::program
