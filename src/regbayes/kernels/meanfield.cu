// Mean field of topic models on a GPU: label-free sweeps (forward) and their derivative (reverse).
//
// The NumPy functions of meanfield.py are the law; names are theirs. A block of threads takes a document. Passes over
// its words are all the work, so the rows of topics of its first `held` words are brought to shared memory once; further
// words are read from L2 in every pass. Inside, LANES neighbouring threads take an entry, each PER_LANE of its topics.
//
// The derivative by the probabilities of an entry is a sum over sweeps of (number) x (vector of the document): numbers
// and vectors are kept, and the table of words hears of an entry once and not in every sweep.
//
// Compiled with REAL (float or double), LANES (8 or 32) and PER_LANE (topics <= LANES * PER_LANE) defined. Vectors over
// topics have K elements and are not padded. No argument is a floating-point number: launchers disagree on their width.

#define GROUPS (32 / LANES)                  // entries that a warp takes at once
#define TILE (PER_LANE <= 8 ? 4 : 1)         // entries that a thread adds to the table at once
#define MOST_THREADS (PER_LANE <= 8 ? 512 : 256)  // of a block: registers are so many
#define ALL_LANES 0xffffffffu
#define TINY ((REAL)1e-30)                   // keeps words that no topic explains from dividing by zero
#define LOWEST (sizeof(REAL) == 4 ? (REAL)-50 : (REAL)-600)  // exponent: smaller factors would vanish
#define SHIFT 10                             // arguments of digamma are moved up by so much, where they are smaller

// --- special functions

// Return digamma(x + SHIFT) less its logarithm, and what the way there takes off; both small enough to add.
__device__ __forceinline__ REAL digamma_rest(REAL x, REAL* at)
{
    REAL way = 0;
    *at = x;
    if (x < SHIFT) {  // sum of 1 / (x + i) as one fraction: divisions are slow
        REAL top = 0, bottom = 1;
#pragma unroll
        for (int i = 0; i < SHIFT; i++) {
            REAL f = x + i;
            top = top * f + bottom;
            bottom *= f;
        }
        way = top / bottom;
        *at = x + SHIFT;
    }
    REAL inverse = 1 / *at, s = inverse * inverse;
    REAL series = s * ((REAL)(1. / 12) - s * ((REAL)(1. / 120) - s * ((REAL)(1. / 252) - s * ((REAL)(1. / 240)
        - s * ((REAL)(1. / 132) - s * (REAL)(691. / 32760))))));
    return -inverse / 2 - series - way;
}

__device__ __forceinline__ REAL exp_digamma(REAL x)
{
    REAL at, rest = digamma_rest(x, &at);
    return at * exp(rest > LOWEST ? rest : LOWEST);
}

__device__ __forceinline__ REAL trigamma(REAL x)
{
    REAL found = 0, at = x;
    if (x < SHIFT) {  // sum of 1 / (x + i)^2 as one fraction
        REAL top = 0, bottom = 1;
#pragma unroll
        for (int i = 0; i < SHIFT; i++) {
            REAL f = (x + i) * (x + i);
            top = top * f + bottom;
            bottom *= f;
        }
        found = top / bottom;
        at = x + SHIFT;
    }
    REAL inverse = 1 / at, s = inverse * inverse;
    REAL series = s * ((REAL)(1. / 6) - s * ((REAL)(1. / 30) - s * ((REAL)(1. / 42) - s * ((REAL)(1. / 30)
        - s * ((REAL)(5. / 66) - s * ((REAL)(691. / 2730) - s * (REAL)(7. / 6)))))));
    return found + inverse * (1 + inverse / 2 + series);
}

__device__ double digamma(double x)
{
    double way = 0;
    for (; x < SHIFT; x += 1) way += 1 / x;
    double s = 1 / (x * x);
    double series = s * (1. / 12 - s * (1. / 120 - s * (1. / 252 - s * (1. / 240 - s * (1. / 132 - s * (691. / 32760))))));
    return log(x) - 0.5 / x - series - way;
}

// --- what the threads of a block do together

// A document as its block sees it.
struct Document {
    const int* words;     // (size,)
    const REAL* numbers;  // (size,)
    int size;             // entries
    int held;             // entries whose rows of topics are in shared memory
    const REAL* rows;     // (held, K), shared
    const REAL* topics;   // (V, K)
    int K;

    __device__ const REAL* row(int i) const { return i < held ? rows + i * K : topics + (size_t)words[i] * K; }
};

// Sum over all threads; every thread gets it.
__device__ double block_sum(double x)
{
    __shared__ double parts[32];
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    double found = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) found += parts[warp];
    return found;
}

// Sum over the lanes that share an entry.
__device__ __forceinline__ REAL lane_sum(REAL x)
{
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

// Sum vectors over topics, of which each group of lanes has one, to an array of shape (K,) in shared memory.
__device__ __forceinline__ void add_groups(const REAL* mine, int K, REAL* partial, REAL* found)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();  // the last sums were read
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        REAL x = mine[j];
#pragma unroll
        for (int step = LANES; step < 32; step *= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
        int k = lane + j * LANES;
        if (lane < LANES && k < K) partial[warp * K + k] = x;
    }
    __syncthreads();
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
        REAL sum = 0;
        for (int w = 0; w < blockDim.x / 32; w++) sum += partial[w * K + k];
        found[k] = sum;  // read by this thread alone, until the next barrier
    }
}

// Copy 16 bytes, or one number, from global to shared memory, without waiting where the chip can do so.
template <int bytes>
__device__ __forceinline__ void copy(void* to, const void* from)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::
        "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "n"(bytes));
#else
    for (int i = 0; i < bytes / 4; i++) ((int*)to)[i] = ((const int*)from)[i];
#endif
}

// Bring the topics of the first words to shared memory.
__device__ __forceinline__ void hold_rows(Document d, REAL* rows)
{
    int first = threadIdx.x / LANES, lane = threadIdx.x % LANES, n_groups = blockDim.x / LANES;
    bool wide = d.K * sizeof(REAL) % 16 == 0;
    int chunks = wide ? d.K * (int)sizeof(REAL) / 16 : d.K;
    for (int i = first; i < d.held; i += n_groups) {
        const char* from = (const char*)(d.topics + (size_t)d.words[i] * d.K);
        char* to = (char*)(rows + i * d.K);
        for (int c = lane; c < chunks; c += LANES) {
            if (wide) copy<16>(to + 16 * c, from + 16 * c);
            else copy<sizeof(REAL)>(to + sizeof(REAL) * c, from + sizeof(REAL) * c);
        }
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    __syncthreads();
}

// Where a thread stands: its entry among those of the block's turn, and its first topic.
#define TURN ((int)(threadIdx.x / 32) * GROUPS)  // of the warp: all of its lanes go on together
#define MEMBER ((int)(threadIdx.x % 32) / LANES)
#define LANE ((int)(threadIdx.x % LANES))
#define PER_TURN ((int)(blockDim.x / 32) * GROUPS)

__device__ __forceinline__ void load(const REAL* vector, int K, REAL* mine)
{
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) mine[j] = LANE + j * LANES < K ? vector[LANE + j * LANES] : (REAL)0;
}

__device__ __forceinline__ REAL dot(const REAL* a, const REAL* b)
{
    REAL found = 0;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) found += a[j] * b[j];
    return lane_sum(found);
}

// Write found = scale * sum_i number_i p_i / (p_i t): one sweep, less its factor t. docs/math.md eq. (66).
__device__ __forceinline__ void sweep(Document d, const REAL* t, REAL scale, REAL* kept, REAL* partial, REAL* found)
{
    REAL own[PER_LANE], sums[PER_LANE] = {};
    load(t, d.K, own);
#pragma unroll 2
    for (int turn = TURN; turn < d.size; turn += PER_TURN) {
        int i = turn + MEMBER;
        REAL row[PER_LANE] = {};
        if (i < d.size) load(d.row(i), d.K, row);
        REAL r = dot(row, own) + TINY, share = i < d.size ? scale * d.numbers[i] / r : (REAL)0;
#pragma unroll
        for (int j = 0; j < PER_LANE; j++) sums[j] += share * row[j];
        if (kept && i < d.held && LANE == 0) kept[i] = share;
    }
    add_groups(sums, d.K, partial, found);
}

// --- kernels

// Label-free inference of documents, docs/math.md eq. (66), and their part of the bound, eq. (68): of its divergences
// the part that is the same for all documents is left to the caller.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) forward(
    const int* words, const REAL* numbers, const long long* starts,  // documents: (entries,), (entries,), (N + 1,)
    const REAL* topics, const REAL* doc_prior,                       // (V, K), (K,)
    REAL* gamma, double* likelihoods, double* divergences,           // written: (N, K), (N,), (N,)
    int K, int n_sweeps, int held)
{
    extern __shared__ __align__(16) char shared[];
    long long begin = starts[blockIdx.x];
    Document d = {words + begin, numbers + begin, (int)(starts[blockIdx.x + 1] - begin), 0, (REAL*)shared, topics, K};
    d.held = d.size < held ? d.size : held;
    REAL *t = (REAL*)shared + held * K, *at = t + K, *sums = at + K, *partial = sums + K;
    hold_rows(d, (REAL*)shared);

    double length = 0;
    for (int i = threadIdx.x; i < d.size; i += blockDim.x) length += d.numbers[i];
    length = block_sum(length);
    for (int k = threadIdx.x; k < K; k += blockDim.x) t[k] = exp_digamma(at[k] = doc_prior[k] + (REAL)(length / K));
    for (int s = 0; s < n_sweeps; s++) {
        __syncthreads();
        sweep(d, t, 1, nullptr, partial, sums);
        for (int k = threadIdx.x; k < K; k += blockDim.x) t[k] = exp_digamma(at[k] = doc_prior[k] + t[k] * sums[k]);
    }
    __syncthreads();

    double logs = 0, total = 0, apart = 0;
    REAL own[PER_LANE];
    load(t, K, own);
    for (int turn = TURN; turn < d.size; turn += PER_TURN) {
        int i = turn + MEMBER;
        REAL row[PER_LANE] = {};
        if (i < d.size) load(d.row(i), K, row);
        REAL r = dot(row, own) + TINY;
        if (i < d.size && LANE == 0) logs += d.numbers[i] * log((double)r);
    }
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
        double g = at[k];
        gamma[(size_t)blockIdx.x * K + k] = at[k];
        total += g;
        apart += (g - (double)doc_prior[k]) * digamma(g) - lgamma(g);
    }
    logs = block_sum(logs), total = block_sum(total), apart = block_sum(apart);
    double prior = 0;
    for (int k = threadIdx.x; k < K; k += blockDim.x) prior += doc_prior[k];
    prior = block_sum(prior);
    if (threadIdx.x == 0) {
        likelihoods[blockIdx.x] = logs - length * digamma(total);
        divergences[blockIdx.x] = apart + lgamma(total) - (total - prior) * digamma(total);
    }
}

// Derivatives of the documents' bounds, and of what else depends on gamma, by the topics: docs/math.md eq. (69), (70).
//
// Sweeps are made once more. Vectors over topics are kept for every sweep: its factors t, and g t, what its sums weigh;
// before that is known its place holds gamma. Vectors 0 .. n_sweeps are the factors, the others follow.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) reverse(
    const int* words, const REAL* numbers, const long long* starts,  // as in forward
    const REAL* topics, const REAL* doc_prior,
    const REAL* gamma, const REAL* grad, const REAL* weights,        // (N, K), (N, K), (N,)
    double* table,                          // added to, unless sorted: (V, K)
    const int* places, REAL* by_entry,      // if sorted: (entries,), the row of an entry; written: (entries, K)
    int sorted, int K, int n_sweeps, int held)
{
    extern __shared__ __align__(16) char shared[];
    long long begin = starts[blockIdx.x];
    Document d = {words + begin, numbers + begin, (int)(starts[blockIdx.x + 1] - begin), 0, (REAL*)shared, topics, K};
    d.held = d.size < held ? d.size : held;
    const int n = n_sweeps, n_vectors = 2 * n + 1;
    REAL *vectors = (REAL*)shared + held * K, *kept = vectors + n_vectors * K, *g = kept + n_vectors * held;
    REAL *sums = g + K, *through_sums = sums + K, *partial = through_sums + K;
    const REAL weight = weights[blockIdx.x];
    const REAL* last = gamma + (size_t)blockIdx.x * K;
    hold_rows(d, (REAL*)shared);

    double length = 0;
    for (int i = threadIdx.x; i < d.size; i += blockDim.x) length += d.numbers[i];
    length = block_sum(length);
    for (int s = 0; s <= n; s++) {
        REAL *t = vectors + s * K, *at = vectors + (n + 1 + s) * K;
        for (int k = threadIdx.x; k < K; k += blockDim.x) {
            REAL now = s == n ? last[k] : doc_prior[k] + (s == 0 ? (REAL)(length / K) : t[k - K] * sums[k]);
            t[k] = exp_digamma(now);
            if (s < n) at[k] = now;
        }
        __syncthreads();
        if (s == n) sweep(d, t, -weight, kept + s * held, partial, sums);  // the bound itself
        else if (s < n - 1) sweep(d, t, 1, nullptr, partial, sums);        // the last sweep's result is given
    }
    {
        const REAL* t = vectors + n * K;
        for (int k = threadIdx.x; k < K; k += blockDim.x)
            g[k] = grad[(size_t)blockIdx.x * K + k]
                + (weight * (last[k] - doc_prior[k]) + sums[k] * t[k]) * trigamma(last[k]);
    }

    REAL own[PER_LANE];
    // Entries that are not held are added at once, in every sweep; here those of the bound itself.
    load(vectors + n * K, K, own);
    for (int turn = d.held / GROUPS * GROUPS + TURN; turn < d.size; turn += PER_TURN) {
        int i = turn + MEMBER;
        bool mine = i >= d.held && i < d.size;
        REAL row[PER_LANE] = {};
        if (mine) load(d.row(i), K, row);
        REAL share = -weight * (mine ? d.numbers[i] : (REAL)0) / (dot(row, own) + TINY);
        for (int j = 0; j < PER_LANE; j++) {
            int k = LANE + j * LANES;
            if (!mine || k >= K) continue;
            if (sorted) by_entry[(size_t)places[begin + i] * K + k] = share * own[j];
            else atomicAdd(table + (size_t)d.words[i] * K + k, (double)(share * own[j]));
        }
    }

    for (int s = n - 1; s >= 0; s--) {
        REAL *t = vectors + s * K, *by_sum = vectors + (n + 1 + s) * K;
        // The threads that own g[k] own these elements too.
        for (int k = threadIdx.x; k < K; k += blockDim.x) {
            REAL slope = trigamma(by_sum[k]);
            by_sum[k] = g[k] * t[k];
            g[k] = slope;  // what the next g is multiplied by, until it is known
        }
        __syncthreads();
        REAL own_sum[PER_LANE], of_share[PER_LANE] = {}, of_r[PER_LANE] = {};
        load(t, K, own);
        load(by_sum, K, own_sum);
#pragma unroll 2
        for (int turn = TURN; turn < d.size; turn += PER_TURN) {
            int i = turn + MEMBER;
            REAL row[PER_LANE] = {};
            if (i < d.size) load(d.row(i), K, row);
            REAL r = dot(row, own) + TINY, through = dot(row, own_sum);
            REAL share = i < d.size ? d.numbers[i] / r : (REAL)0, by_r = -through * share / r;
#pragma unroll
            for (int j = 0; j < PER_LANE; j++) of_share[j] += share * row[j], of_r[j] += by_r * row[j];
            if (i < d.held) {
                if (LANE == 0) kept[(n + 1 + s) * held + i] = share, kept[s * held + i] = by_r;
            } else if (i < d.size) {
                for (int j = 0; j < PER_LANE; j++) {
                    int k = LANE + j * LANES;
                    if (k >= K) continue;
                    REAL add = share * own_sum[j] + by_r * own[j];
                    if (sorted) by_entry[(size_t)places[begin + i] * K + k] += add;
                    else atomicAdd(table + (size_t)d.words[i] * K + k, (double)add);
                }
            }
        }
        if (s == 0) break;  // even proportions do not depend on the topics
        add_groups(of_share, K, partial, sums);
        add_groups(of_r, K, partial, through_sums);
        for (int k = threadIdx.x; k < K; k += blockDim.x)  // g before is by_sum / t
            g[k] *= by_sum[k] * sums[k] + through_sums[k] * t[k];
    }
    __syncthreads();

    // Entries that are held: numbers times vectors, summed over sweeps.
    for (int first = (threadIdx.x / LANES) * TILE; first < d.held; first += (blockDim.x / LANES) * TILE) {
        REAL tile[TILE][PER_LANE] = {};
        for (int v = 0; v < n_vectors; v++) {
            REAL vector[PER_LANE];
            load(vectors + v * K, K, vector);
#pragma unroll
            for (int e = 0; e < TILE; e++) {
                REAL number = first + e < d.held ? kept[v * held + first + e] : (REAL)0;
#pragma unroll
                for (int j = 0; j < PER_LANE; j++) tile[e][j] += number * vector[j];
            }
        }
#pragma unroll
        for (int e = 0; e < TILE; e++) {
            int i = first + e;
            if (i >= d.held) continue;
#pragma unroll
            for (int j = 0; j < PER_LANE; j++) {
                int k = LANE + j * LANES;
                if (k >= K) continue;
                if (sorted) by_entry[(size_t)places[begin + i] * K + k] = tile[e][j];
                else atomicAdd(table + (size_t)d.words[i] * K + k, (double)tile[e][j]);
            }
        }
    }
}

// Add rows to those of their words, always in the same order: the sorted second pass. A block takes a word.
extern "C" __global__ void add_rows(
    const REAL* rows,   // (entries, K), ordered by word
    const int* starts,  // (V + 1,): where words begin
    double* table,      // added to: (V, K)
    int K)
{
    __shared__ double parts[32][33];
    int begin = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    if (begin == end) return;
    for (int first = 0; first < K; first += 32) {
        int k = first + lane;
        double sum = 0;
        if (k < K) {
#pragma unroll 4
            for (int i = begin + warp; i < end; i += n_warps) sum += rows[(size_t)i * K + k];
        }
        parts[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && k < K) {
            for (int w = 1; w < n_warps; w++) sum += parts[w][lane];
            table[(size_t)blockIdx.x * K + k] += sum;
        }
        __syncthreads();
    }
}
