// Large buffers that are used again. A training step makes the same activations every time; from the C library each
// would come as fresh pages, and their page faults cost more than a sparse kernel.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <vector>

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

// Memory for one thread, which gives back first what it took last. So it is met in the same place again and again, and
// the thread's core has it in its caches; what the pool hands out, another core may have used last: two threads that
// train side by side lost a third of their time to that.
class Stack {
 public:
  Stack() = default;
  Stack(const Stack&) = delete;
  ~Stack();
  void* want(int64_t count, int64_t size, const char* what);  // throws as the function of that name
  void give(void* p) noexcept;

 private:
  struct Block {
    char* first = nullptr;
    int64_t size = 0, used = 0;
    int64_t room() const { return size - used; }
  };
  std::vector<Block> blocks_;  // in use up to top_
  size_t top_ = 0;
};

// As long as it lives, scratch memory of this thread (core/scratch.h) comes from a stack instead of the pool.
class OnStack {
 public:
  explicit OnStack(Stack& stack);
  OnStack(const OnStack&) = delete;
  ~OnStack();
  static Stack* current();  // nullptr: none

 private:
  Stack* const before_;
};

}  // namespace sparsefl
