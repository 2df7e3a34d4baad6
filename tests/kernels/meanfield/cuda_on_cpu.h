// Runs CUDA kernels on a processor, to test them where there is no graphics card: threads of a block are fibers that
// take turns at barriers and shuffles. Slow, and exact about what a block's threads see of each other.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n)
#define __shared__ thread_local  // one block at a time, in one thread: all fibers see the same
#define __restrict__

struct Index { unsigned x; };
static Index threadIdx, blockIdx, blockDim;
alignas(16) thread_local char shared[1 << 18];

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
    unsigned arrived;    // barriers so far
    unsigned shuffled;   // shuffles so far
    double offered[2];   // to the other lanes, in this shuffle and the last
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned current;
static std::function<void()> body;

static void yield_fiber() { swapcontext(&fibers[current].context, &scheduler); }

static void __syncthreads()
{
    unsigned mine = ++fibers[current].arrived;
    for (;;) {
        bool all = true;
        for (auto& f : fibers) all &= f.done || f.arrived >= mine;
        if (all) return;
        yield_fiber();
    }
}

template <class T> static T shuffle(T value, unsigned from)
{
    unsigned lane = threadIdx.x, first = lane / 32 * 32, mine = ++fibers[lane].shuffled;
    fibers[lane].offered[mine % 2] = value;
    for (;;) {
        bool all = true;
        for (unsigned i = first; i < first + 32; i++) {
            if (fibers[i].done && fibers[i].shuffled < mine) abort();  // a lane that has left cannot answer
            all &= fibers[i].shuffled >= mine;
        }
        if (all) return (T)fibers[from].offered[mine % 2];
        yield_fiber();
    }
}

template <class T> static T __shfl_xor_sync(unsigned, T value, int step) { return shuffle(value, threadIdx.x ^ step); }

template <class T> static T __shfl_sync(unsigned, T value, int lane, int width)
{
    return shuffle(value, threadIdx.x / width * width + lane);
}

static void __syncwarp() { shuffle(0, threadIdx.x); }

template <class T> static void atomicAdd(T* to, T value) { *to += value; }

static void run_fiber()
{
    body();
    fibers[current].done = true;
    for (;;) yield_fiber();
}

// Run a kernel; what is not written of shared memory is not a number, so that reading it shows.
static void launch(int n_blocks, int n_threads, std::function<void()> kernel)
{
    body = kernel;
    blockDim.x = n_threads;
    fibers.resize(n_threads);
    for (auto& f : fibers) f.stack.resize(1 << 16);
    for (int block = 0; block < n_blocks; block++) {
        blockIdx.x = block;
        memset(shared, 0xff, sizeof shared);
        for (auto& f : fibers) {
            f.done = false, f.arrived = f.shuffled = 0;
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size();
            f.context.uc_link = &scheduler;
            makecontext(&f.context, run_fiber, 0);
        }
        for (bool left = true; left;) {
            left = false;
            for (current = 0; current < fibers.size(); current++) {
                if (fibers[current].done) continue;
                threadIdx.x = current, left = true;
                swapcontext(&scheduler, &fibers[current].context);
            }
        }
    }
}

#include "meanfield.cu"

extern "C" void run_forward(int n_blocks, int n_threads, const int* words, const REAL* numbers, const long long* starts,
    const REAL* topics, const REAL* doc_prior, REAL* gammas, double* likelihoods, double* divergences, int K,
    int n_sweeps, int n_kept)
{
    launch(n_blocks, n_threads, [=] { forward(words, numbers, starts, topics, doc_prior, gammas, likelihoods,
        divergences, K, n_sweeps, n_kept); });
}

extern "C" void run_reverse(int n_blocks, int n_threads, const int* words, const REAL* numbers, const long long* starts,
    const REAL* topics, const REAL* doc_prior, const REAL* gammas, const REAL* grad, const REAL* weights,
    double* table, const int* places, REAL* by_entry, int sorted, int K, int n_sweeps, int noted)
{
    launch(n_blocks, n_threads, [=] { reverse(words, numbers, starts, topics, doc_prior, gammas, grad, weights, table,
        places, by_entry, sorted, K, n_sweeps, noted); });
}

extern "C" void run_add_rows(int n_blocks, int n_threads, const REAL* rows, const int* starts, double* table, int K)
{
    launch(n_blocks, n_threads, [=] { add_rows(rows, starts, table, K); });
}
