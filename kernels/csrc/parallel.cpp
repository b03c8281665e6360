#define SPARSE_ISA baseline
#include "parallel.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace sparsefl {
namespace {

constexpr int SPINS = 4000;  // some 20 us: the next kernel of a layer often follows at once

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One job at a time. A helper joins a job that is still open; the caller closes it when no chunk is left to take and
// waits for those who joined, never for one that is still asleep.
class Pool {
 public:
  void run(int64_t chunks, int helpers, void (*body)(void*, int64_t), void* context) {
    for (; started_ < helpers; started_++) std::thread(&Pool::work, this, started_, job_.load()).detach();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      body_ = body, context_ = context, chunks_ = chunks, helpers_ = helpers, open_ = true;
      next_.store(0, std::memory_order_relaxed);
      job_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    drain(body, context, chunks);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = false;
    }
    while (joined_.load(std::memory_order_acquire) > 0) relax();
  }

  std::mutex in_use;

 private:
  void drain(void (*body)(void*, int64_t), void* context, int64_t chunks) {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < chunks;) body(context, i);
  }

  void work(int id, uint64_t seen) {
    for (;;) {
      for (int spin = 0; spin < SPINS && job_.load(std::memory_order_acquire) == seen; spin++) relax();
      void (*body)(void*, int64_t);
      void* context;
      int64_t chunks;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return job_.load(std::memory_order_relaxed) != seen; });
        seen = job_.load(std::memory_order_relaxed);
        if (!open_ || id >= helpers_) continue;
        body = body_, context = context_, chunks = chunks_;
        joined_.fetch_add(1, std::memory_order_relaxed);
      }
      drain(body, context, chunks);
      joined_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> job_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<int> joined_{0};
  void (*body_)(void*, int64_t) = nullptr;
  void* context_ = nullptr;
  int64_t chunks_ = 0;
  int helpers_ = 0, started_ = 0;
  bool open_ = false;
};

// Never destroyed: its threads may outlive static destructors. A forked child has none of them and starts afresh.
Pool* pool = nullptr;
std::once_flag once;

Pool& the_pool() {
  std::call_once(once, [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
  });
  return *pool;
}

}  // namespace

void run_chunks(int64_t chunks, int threads, void (*body)(void*, int64_t), void* context) {
  const int helpers = int((threads < chunks ? threads : chunks) - 1);
  if (helpers > 0) {
    Pool& shared = the_pool();
    std::unique_lock<std::mutex> lock(shared.in_use, std::try_to_lock);
    if (lock.owns_lock()) return shared.run(chunks, helpers, body, context);
  }
  for (int64_t i = 0; i < chunks; i++) body(context, i);
}

}  // namespace sparsefl
