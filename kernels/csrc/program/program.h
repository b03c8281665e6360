// A program: lists of steps over one workspace, and what a client does with them. Nothing here allocates while a list
// runs, and no call holds Python's lock.
#pragma once
#include <memory>
#include <vector>

#include "core/memory.h"
#include "program/conv.h"

namespace sparsefl::program {

// Memory of a worker: grows to what its programs need, and is used again by every call.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  ~Workspace();
  float* reserve(int64_t floats);
  int64_t size() const { return size_; }
  Stack& scratch() { return scratch_; }  // of what the kernels need besides, on the worker's own thread

 private:
  Stack scratch_;
  float* first_ = nullptr;
  int64_t size_ = 0;
};

// Samples in the order in which batches take them: `epochs` times `samples` indices, each with its move.
struct Batches {
  Samples data;
  const int64_t* labels;  // of the whole data set
  const int64_t* order;
  Moves moves;
  int64_t samples, epochs, batch;
};

// How a training steps. max_norm, rho, pull_rate: 0: without.
struct Training {
  Sgd sgd;
  double max_norm, rho;
  double pull_rate;  // of the way back to these, from where the weights were before a step
  const float *pull_values, *pull_rest;
  float *velocity_values, *velocity_rest;  // of momentum, kept by the caller; null: it starts from 0
  const uint64_t* seeds;
  uint64_t pass;        // the number of the first pass, for dropout
  const uint8_t* stop;  // looked at before every batch; null: never
  float* scores;        // takes the gradient of every prunable weight, dense, of the last batch; null: not wanted
  const int64_t* score_starts;  // of each segment in it
};

struct Trained {
  double loss;      // sum over samples
  int64_t samples;  // seen
  int64_t failed;   // the batch whose loss is not finite; -1: none
  double failed_loss;
  bool stopped;
  bool finite;                        // is every number of the model?
  int64_t right_before, right_after;  // of the test samples; -1: not tested
  int64_t scored = 0;                 // samples of the batch whose dense gradients were kept
};

class Program {
 public:
  using Steps = std::vector<std::shared_ptr<Step>>;

  int64_t lanes;                 // columns of a row of every value
  int64_t input, rows;           // where the batch is, and how many rows it has
  int64_t size;                  // floats of the workspace
  bool bf16;                     // images are bfloat16
  bool dot;                      // ... and their products have an instruction
  int64_t segments, rest;        // of a model: prunable weights, entries of rest
  std::vector<int64_t> trained;  // first, length, first, length, ... of what is trained in rest
  std::vector<std::shared_ptr<Conv>> convs;
  Steps train, last, evaluate, grow;  // last: train, with gradients of all entries of prunable weights

  // `test`: samples to evaluate before and after it; null: none.
  Trained run_training(Workspace&, Arenas, Batches, Training, const Batches* test, int threads) const;
  // The sum over batches of samples times gradient, in dvalues and drest.
  Trained run_gradient(Workspace&, Arenas, Batches, const uint64_t* seeds, float* dvalues, float* drest,
                       int threads) const;
  // How many samples get their own class.
  int64_t run_evaluation(Workspace&, Arenas, Batches, int threads) const;
  // RigL's next pattern by the gradient of the first batch. Returns the segment whose gradient is not finite, or -1.
  int64_t run_growth(Workspace&, Arenas, Batches, const uint64_t* seeds, const uint64_t* kept, const int64_t* wanted,
                     uint64_t* words, int threads) const;
  // Seconds of each step of a list for the first batch: the least of `times` passes. The model does not change, but
  // for what norms keep.
  std::vector<double> run_profile(Workspace&, Arenas, Batches, const Steps&, const uint64_t* seeds, int times,
                                  int threads) const;

 private:
  class Pass;
  Trained train_only(Workspace&, const Arenas&, const Batches&, const Training&, int threads) const;
};

}  // namespace sparsefl::program
