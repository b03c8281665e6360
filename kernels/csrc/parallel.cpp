#define SPARSE_ISA baseline
#include "parallel.h"

#include <dlfcn.h>
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

// Chunks that whoever is free takes one by one.
struct Job {
  int64_t chunks;
  void (*body)(void*, int64_t);
  void* context;
  std::atomic<int64_t> next{0};

  void drain() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) body(context, i);
  }
};

// One job at a time. A helper joins a job that is still open; the caller closes it when no chunk is left to take and
// waits for those who joined, never for one that is still asleep.
class Pool {
 public:
  void run(Job& job, int helpers) {
    for (; started_ < helpers; started_++) std::thread(&Pool::work, this, started_, count_.load()).detach();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = &job, helpers_ = helpers;
      count_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job.drain();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = nullptr;
    }
    while (joined_.load(std::memory_order_acquire) > 0) relax();
  }

 private:
  void work(int id, uint64_t seen) {
    for (;;) {
      for (int spin = 0; spin < SPINS && count_.load(std::memory_order_acquire) == seen; spin++) relax();
      Job* job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return count_.load(std::memory_order_relaxed) != seen; });
        seen = count_.load(std::memory_order_relaxed);
        if (!open_ || id >= helpers_) continue;
        job = open_;
        joined_.fetch_add(1, std::memory_order_relaxed);
      }
      job->drain();
      joined_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> count_{0};  // of jobs
  std::atomic<int> joined_{0};
  Job* open_ = nullptr;
  int helpers_ = 0, started_ = 0;
};

// torch's own threads, if they are OpenMP's: its helpers spin for some milliseconds after each of torch's operations,
// and threads beside them would have to share their cores.
struct Team {
  void (*run)(void (*body)(void*), void* context, unsigned threads, unsigned flags) = nullptr;
  int (*size)() = nullptr;

  // Only as large as torch's: OpenMP ends threads that a smaller team leaves over and starts them again for the next.
  bool serves(int threads) const { return run && size && size() == threads; }
};

Team torch_team() {  // from the library that torch itself is bound to
  Team team;
  if (void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD)) {
    const auto find = [&](const char* name) {
      void* symbol = dlsym(RTLD_DEFAULT, name);
      return symbol ? symbol : dlsym(torch, name);
    };
    team.run = reinterpret_cast<decltype(team.run)>(find("GOMP_parallel"));
    team.size = reinterpret_cast<decltype(team.size)>(find("omp_get_max_threads"));
  }
  return team;
}

struct Threads {
  Team team;
  Pool pool;
  std::mutex in_use;

  void run(Job& job, int helpers, int threads) {
    if (team.serves(threads))
      team.run([](void* x) { static_cast<Job*>(x)->drain(); }, &job, unsigned(threads), 0);
    else
      pool.run(job, helpers);
  }
};

// Never destroyed: the threads may outlive static destructors. A forked child has neither torch's threads, whose
// library would wait for them for ever, nor those of the pool: it starts a pool of its own.
Threads* all = nullptr;
bool forked = false;
std::once_flag once;
const int watching = pthread_atfork(nullptr, nullptr, [] {
  forked = true;
  if (all) all = new Threads;
});

Threads& the_threads() {
  std::call_once(once, [] {
    all = new Threads;
    if (!forked && watching == 0) all->team = torch_team();
  });
  return *all;
}

}  // namespace

void run_chunks(int64_t chunks, int threads, void (*body)(void*, int64_t), void* context) {
  Job job{chunks, body, context};
  const int helpers = int((threads < chunks ? threads : chunks) - 1);
  if (helpers > 0) {
    Threads& shared = the_threads();
    std::unique_lock<std::mutex> lock(shared.in_use, std::try_to_lock);
    if (lock.owns_lock()) return shared.run(job, helpers, threads);
  }
  job.drain();
}

}  // namespace sparsefl
