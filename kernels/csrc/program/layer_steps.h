// The steps between convolutions. Values are [channel][position][lanes] in the workspace, all lanes alike: only batch
// norm and dropout care which of them belong to the batch.
#pragma once
#include "program/model.h"

namespace sparsefl::program {

class GroupNorm : public Step {
 public:
  NormShape shape;
  int64_t x, y, mean, rstd, gamma, beta;  // gamma, beta: in rest; -1: none
  double eps;
  bool relu;
  void run(Run& r) const override;
};

class GroupNormBackward : public Step {
 public:
  NormShape shape;
  int64_t dy, x, mean, rstd, gamma, beta, dx;
  bool relu;
  void run(Run& r) const override;
};

// In a batch with fewer samples than lanes these work on a copy of the samples alone (scratch).
class BatchNorm : public Step {
 public:
  NormShape shape;
  int64_t x, y, mean, rstd, gamma, beta, scratch;
  int64_t running_mean, running_var, count;  // in rest, count in integers; -1: not kept
  double eps, momentum;                      // momentum < 0: the mean over all batches
  bool relu;
  void run(Run& r) const override;
};

class BatchNormBackward : public Step {
 public:
  NormShape shape;
  int64_t dy, x, mean, rstd, gamma, beta, dx, scratch;
  bool relu;
  void run(Run& r) const override;
};

class MaxPool : public Step {
 public:
  PoolShape shape;
  int64_t x, y, index;
  bool wide, relu;  // wide: an index takes four bytes
  void run(Run& r) const override;
};

class MaxPoolBackward : public Step {
 public:
  PoolShape shape;
  int64_t dy, index, dx;
  bool wide;
  void run(Run& r) const override;
};

class AveragePool : public Step {
 public:
  PoolShape shape;
  int64_t x, y;
  bool backward;
  void run(Run& r) const override;
};

// y = relu(x), or relu(x + other)
class Relu : public Step {
 public:
  int64_t x, other, y, size;  // other: -1: none
  void run(Run& r) const override;
};

// dx = dy where y > 0; in place where dx is dy
class ReluBackward : public Step {
 public:
  int64_t dy, y, dx, size;
  void run(Run& r) const override;
};

// y = a + b
class Add : public Step {
 public:
  int64_t a, b, y, size;
  void run(Run& r) const override;
};

// The gradient of a bias: sums of dy [channels][size]
class BiasGradient : public Step {
 public:
  int64_t dy, channels, size, bias;
  void run(Run& r) const override;
};

// The mean cross-entropy of logits [classes][lanes] over the samples, and its gradient, 0 beyond them. scratch: lanes,
// and three times the logits.
class Loss : public Step {
 public:
  int64_t logits, dlogits, classes, lanes, scratch;
  void run(Run& r) const override;
};

// Counts the samples whose largest logit is that of their class. scratch: twice the logits.
class Correct : public Step {
 public:
  int64_t logits, classes, lanes, scratch;
  void run(Run& r) const override;
};

// Dropout, forward and backward alike.
class Drop : public Step {
 public:
  int64_t x, y, elements, lanes, number;
  double p;
  void run(Run& r) const override;
};

}  // namespace sparsefl::program
