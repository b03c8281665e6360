// A client's whole turn in one call: the mean of its model and its neighbours' on a mask, tests and training, how far
// it has drifted, RigL's next pattern, and the size of the message that carries the model (fl/train/visit_steps.py
// says the same in steps). Nothing here knows Python.
#pragma once
#include "bytes/message.h"
#include "program/draws.h"
#include "program/program.h"

namespace sparsefl::program {

// A model at rest, as it is read.
struct Stored {
  const uint64_t* words;
  const float* values;
  int64_t nnz;
  const float* rest;
};

// A part of a data set, and which of its samples belong to whom: those of client k are indices[pointers[k]] up to
// indices[pointers[k + 1]].
struct Share {
  Samples data;
  const int64_t* labels;
  const int64_t* pointers;
  const void* indices;
  bool wide;  // indices of 8 bytes, not 4

  int64_t count(int64_t k) const { return pointers[k + 1] - pointers[k]; }
  const void* of(int64_t k) const { return static_cast<const char*>(indices) + pointers[k] * (wide ? 8 : 4); }
};

// A list of runs [first, end) of an arena, as pairs.
using Runs = std::vector<int64_t>;

// What all clients of a round do alike.
struct Visit {
  Segments segments;
  Share train, test;
  Training training;
  int64_t round, epochs, batch;
  StreamKey order;         // of the draws of training
  bool moved;              // are samples cropped and mirrored?
  int64_t padding;         // of crops: corners are drawn even if samples stay as they are
  double fraction;         // of a segment's entries, that move to where gradients are large; below 0: the mask stays
  int64_t growth;          // samples of the batch whose gradient decides; 0: of the last batch of the training
  StreamKey growth_order;  // of its draw
  const uint64_t* growth_seeds;
  bool norms;                         // do batch norms keep numbers that growth must leave alone?
  const float *origin, *origin_rest;  // w0, everything stored: where drift starts; null: drift is not wanted
  Runs tensors;                       // of rest
  bool message;                       // is its size wanted?
  uint64_t fingerprint;
  int64_t integers;       // of a model
  Runs weights, vectors;  // of rest, in the order of a message
};

// Whose turn it is, and where the results go.
struct Visitor {
  int64_t k;
  std::vector<Stored> models;  // own, neighbours'
  const uint64_t* mask;        // of the mean
  const int64_t* offsets;
  const uint64_t* first_mask;  // of the origin
  const int64_t* first_offsets;
  float *values, *rest;  // the trained model
  int64_t* integers;
  uint64_t* words;  // the next pattern
  int64_t* next_offsets;
  double* norms;  // of the differences to the origin: segments, then tensors of rest
};

// What a visit needs besides its workspace; whoever visits one client after the other allocates nothing from the second
// on.
struct VisitMemory {
  Drawn drawn, growing;
  std::vector<int64_t> tests, wanted, stored, integers;
  std::vector<uint64_t> kept;
  std::vector<Packed> packed;
  std::vector<const float*> rests;
  std::vector<float> scores, origin, weights, vectors, rest;
  std::vector<uint8_t> bytes;
};

struct Visited {
  Trained trained;
  int64_t failed;    // the segment whose gradient in growth is not finite; -1: none
  int64_t grown_on;  // samples of growth
  int64_t bytes;     // of the message; -1: not asked for, or a number is not finite
  double seconds;    // of training, with tests

  bool whole() const { return !trained.stopped && trained.failed < 0 && trained.finite && failed < 0; }
};

// `growth`: the program for the batch of growth.
Visited visit(const Program& training, const Program& growth, Workspace&, VisitMemory&, const Visit&, const Visitor&,
              int threads);

}  // namespace sparsefl::program
