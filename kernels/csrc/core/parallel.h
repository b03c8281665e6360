// Threads: torch's own team where it has one, else a small pool. No OpenMP runtime beside torch's, and nothing that
// forks badly. Where a sum is split, it is split by the problem alone, so a result never depends on the thread count.
#pragma once
#include <stdint.h>

namespace sparsefl {

// Calls body(context, i) once for every i < chunks, on at most `threads` threads, the caller among them.
// With one thread, one chunk, or the helpers busy for another caller, it runs right here.
// A body may throw: chunks that nobody has begun are left out, and the first exception goes to the caller when no
// thread is at work any more. None ever leaves a thread of the team.
void run_chunks(int64_t chunks, int threads, void (*body)(void* context, int64_t i), void* context);

}  // namespace sparsefl

namespace SPARSE_ISA {

template <typename Body> static inline void parallel_for(int64_t chunks, int threads, Body body) {
  if (threads <= 1 || chunks <= 1) {  // without a call and an atomic counter for every chunk
    for (int64_t i = 0; i < chunks; i++) body(i);
    return;
  }
  sparsefl::run_chunks(chunks, threads, [](void* context, int64_t i) { (*static_cast<Body*>(context))(i); }, &body);
}

}  // namespace SPARSE_ISA
