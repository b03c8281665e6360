// Memory that an operation needs while it runs. It goes back however the operation ends: `want` throws where there is
// none, through the team of a parallel_for (parallel.h) up to Python, which sees a MemoryError.
#pragma once
#include "core/memory.h"

namespace SPARSE_ISA {
namespace {

// `count` uninitialised T; `what` names them in the error.
template <typename T> class Scratch {
 public:
  Scratch(int64_t count, const char* what)
      : stack_(sparsefl::OnStack::current()),
        first_(
            static_cast<T*>(stack_ ? stack_->want(count, sizeof(T), what) : sparsefl::want(count, sizeof(T), what))) {}
  ~Scratch() { stack_ ? stack_->give(first_) : sparsefl::give(first_); }
  Scratch(const Scratch&) = delete;
  operator T*() const { return first_; }

 private:
  sparsefl::Stack* const stack_;
  T* const first_;
};

}  // namespace
}  // namespace SPARSE_ISA
