// The steps of a convolution: its input into planes, forward, and the gradients of input and weight.
#pragma once
#include "program/conv.h"

namespace sparsefl::program {

// Copies a value into bordered planes; into planes of pairs of so many channels, if it names a number.
class ToPlanes : public Step {
 public:
  ConvPlanes planes;
  int64_t x, to, pairs_of;
  void run(Run& r) const override;
};

// y = what a direction of a convolution makes of planes, plus a bias. For the forward pass and the input gradient.
class ConvApply : public Step {
 public:
  std::shared_ptr<Conv> conv;
  int64_t direction, planes, y;
  int64_t scratch;  // for dense weights; -1: those of the direction are sparse
  int64_t bias;     // in rest; -1: none
  void run(Run& r) const override;

 private:
  void pairs(Run& r, const Direction& d, size_t pass) const;
  template <typename T> void dense(Run& r, Images<T> m, const Direction& d, size_t pass) const;
  template <typename T> void sparse(Run& r, Images<T> m, const Direction& d, size_t pass) const;
};

// dx of a linear layer whose batch is within a tile, in the order of its forward pass.
class LinearInputGradient : public Step {
 public:
  std::shared_ptr<Conv> conv;
  int64_t direction, dy, dx;
  void run(Run& r) const override;
};

// y by Winograd's transforms: forward, or the input gradient with the weight turned round.
class Winograd : public Step {
 public:
  std::shared_ptr<Conv> conv;
  ConvImages images;
  ConvFilter filter;
  const Ops* on;  // null: the run's
  int64_t x, y, scratch;
  int64_t bias;
  void run(Run& r) const override;
};

// The gradient of a weight: on the mask, or of every entry for growth.
class WeightGradient : public Step {
 public:
  enum Kernel { sparse, dense, winograd };
  std::shared_ptr<Conv> conv;
  int kernel;
  const Ops* on;      // of winograd; null: the run's
  int64_t direction;  // whose planes x is in: not of winograd
  ConvImages images;  // of winograd
  int64_t tiles;      // of a row that the dense kernel takes together
  int64_t x, dy, scratch;
  bool grow;   // the mask, by the gradient of every entry
  bool score;  // keep the gradient of every entry, too
  void run(Run& r) const override;

 private:
  void whole(Run& r, float* dw) const;
  void choose(Run& r, const float* dw) const;
};

}  // namespace sparsefl::program
