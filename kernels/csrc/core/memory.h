// Large buffers that are used again. A training step makes the same activations every time; from the C library each
// would come as fresh pages, and their page faults cost more than a sparse kernel.
#pragma once
#include <stdint.h>

namespace sparsefl {

// Uninitialised, on a cache line, in huge pages where the system has them. nullptr: no memory.
void* take(int64_t bytes) noexcept;
// The same of `count` things of `size` bytes; throws a std::bad_alloc that says how many bytes were wanted for `what`.
void* want(int64_t count, int64_t size, const char* what);
// Back to the pool. Needs no memory itself, so it never fails.
void give(void* p) noexcept;

// Are buffers kept? Not in a build for the address sanitizer.
bool pooled();
// Bytes in use, and kept for the next `take`.
int64_t bytes_taken();
int64_t bytes_idle();
// Gives the system back the pages of what is idle; addresses between buffers in use stay, as idle ones.
void trim();

}  // namespace sparsefl
