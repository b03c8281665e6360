// What a message is made of (sparse_engine/wire/message.py); made by sparse_engine/wire/whole.py.
#pragma once
#include "models/models.h"

namespace sparsefl {

struct Message {
  const uint64_t* words;
  const int64_t* stored;  // entries of every segment
  Segments segments;
  const float* weights;  // in the order of the section of values
  int64_t num_weights;
  const float* vectors;
  int64_t num_vectors;
  const int64_t* integers;
  int64_t num_integers;
  uint64_t fingerprint;
  uint32_t sender, round;
};

}  // namespace sparsefl
