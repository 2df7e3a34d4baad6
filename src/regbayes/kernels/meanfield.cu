// Mean field of topic models on a GPU: label-free sweeps (forward) and their derivative (reverse).
//
// Names are those of documents.py and of its NumPy reference. A block of one to eight warps takes a document.
// Passes over the rows of topics of its words are all the work, and they are read from L2 in every pass: to hold them in
// shared memory was no faster, because fewer documents are then under way. LANES neighbouring threads take an entry,
// each PER_LANE of its topics, and AT_ONCE entries at a time, so that there is something to do while others wait.
//
// The derivative by the probabilities of an entry is a sum over sweeps of (number) x (vector of the document): numbers
// and vectors are noted in shared memory, and the table of words hears of an entry once and not in every sweep.
//
// Compiled with REAL (float or double), LANES (8 or 32) and PER_LANE (topics <= LANES * PER_LANE) defined. Vectors over
// topics have K elements and are not padded. No argument is a floating-point number: launchers disagree on their width.

#define GROUPS (32 / LANES)                  // entries that a warp takes side by side
#define AT_ONCE (PER_LANE <= 8 ? 2 : 1)      // entries that a thread takes at once
#define TILE (PER_LANE <= 8 ? 4 : 1)         // entries that a thread adds to the table at once
#define MOST_THREADS 256                     // of a block
#define BLOCKS(n) (PER_LANE <= 8 ? n : 1)    // of so many threads on a multiprocessor: it bounds the registers
#define ALL_LANES 0xffffffffu
#define TINY ((REAL)1e-30)                   // keeps words that no topic explains from dividing by zero
#define LOWEST (sizeof(REAL) == 4 ? (REAL)-50 : (REAL)-600)  // exponent: smaller factors would vanish
#define SHIFT 10                             // arguments of digamma are moved up by so much, where they are smaller

// --- special functions

// Return digamma(x) less log(at), where `at` is x or, if that is small, x + SHIFT.
template <class T> __device__ __forceinline__ T digamma_rest(T x, T* at)
{
    T way = 0;
    *at = x;
    if (x < SHIFT) {  // sum of 1 / (x + i) as one fraction, in two halves: divisions are slow, and so is waiting
        T top = 0, bottom = 1, top2 = 0, bottom2 = 1;
#pragma unroll
        for (int i = 0; i < SHIFT / 2; i++) {
            T f = x + i, f2 = x + (i + SHIFT / 2);
            top = top * f + bottom, top2 = top2 * f2 + bottom2;
            bottom *= f, bottom2 *= f2;
        }
        way = (top * bottom2 + top2 * bottom) / (bottom * bottom2);
        *at = x + SHIFT;
    }
    T inverse = 1 / *at, s = inverse * inverse, s2 = s * s;
    T odd = (T)(1. / 12) + s2 * ((T)(1. / 252) + s2 * (T)(1. / 132));
    T even = (T)(1. / 120) + s2 * ((T)(1. / 240) + s2 * (T)(691. / 32760));
    return -inverse / 2 - s * (odd - s * even) - way;
}

__device__ __forceinline__ REAL exp_digamma(REAL x)
{
    REAL at, rest = digamma_rest(x, &at);
    return at * exp(rest > LOWEST ? rest : LOWEST);
}

__device__ __forceinline__ double digamma(double x)
{
    double at, rest = digamma_rest(x, &at);
    return log(at) + rest;
}

__device__ __forceinline__ REAL trigamma(REAL x)
{
    REAL found = 0, at = x;
    if (x < SHIFT) {  // sum of 1 / (x + i)^2, as above
        REAL top = 0, bottom = 1, top2 = 0, bottom2 = 1;
#pragma unroll
        for (int i = 0; i < SHIFT / 2; i++) {
            REAL f = (x + i) * (x + i), f2 = (x + (i + SHIFT / 2)) * (x + (i + SHIFT / 2));
            top = top * f + bottom, top2 = top2 * f2 + bottom2;
            bottom *= f, bottom2 *= f2;
        }
        found = (top * bottom2 + top2 * bottom) / (bottom * bottom2);
        at = x + SHIFT;
    }
    REAL inverse = 1 / at, s = inverse * inverse, s2 = s * s;
    REAL odd = (REAL)(1. / 6) + s2 * ((REAL)(1. / 42) + s2 * ((REAL)(5. / 66) + s2 * (REAL)(7. / 6)));
    REAL even = (REAL)(1. / 30) + s2 * ((REAL)(1. / 30) + s2 * (REAL)(691. / 2730));
    return found + inverse * (1 + inverse / 2 + s * (odd - s * even));
}

// --- what the threads of a block do together

// Where a thread stands: its entry among those that the block takes at a time, and its first topic.
#define TURN ((int)(threadIdx.x / 32) * GROUPS)  // of the warp: all of its lanes go on together
#define MEMBER ((int)(threadIdx.x % 32) / LANES)
#define LANE ((int)(threadIdx.x % LANES))
#define PER_TURN ((int)(blockDim.x / 32) * GROUPS)
#define TOPIC(j) (LANE + (j) * LANES)
#define IS_TOPIC(j) ((PER_LANE <= 8 && (j) < PER_LANE - 1) || TOPIC(j) < K)  // up to 8 a lane, only the last may miss

// A document as its block sees it.
struct Document {
    const int* words;     // (size,)
    const REAL* numbers;  // (size,)
    int size;             // entries
    const REAL* topics;   // (V, K)
    int K;
};

// Sum several numbers over all threads; every thread gets the sums.
template <int n> __device__ __forceinline__ void block_sum(double* x)
{
    __shared__ double parts[n][32];
#pragma unroll
    for (int step = 16; step; step /= 2)
#pragma unroll
        for (int j = 0; j < n; j++) x[j] += __shfl_xor_sync(ALL_LANES, x[j], step);
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int j = 0; j < n; j++) parts[j][threadIdx.x / 32] = x[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < n; j++) {
        x[j] = 0;
        for (int warp = 0; warp < blockDim.x / 32; warp++) x[j] += parts[j][warp];
    }
}

// Sum vectors over topics, of which each group of lanes has one: parts for each warp, (warps, K), in shared memory.
__device__ __forceinline__ void add_groups(const REAL* mine, int K, REAL* partial)
{
    int warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
        REAL x = mine[j];
#pragma unroll
        for (int step = LANES; step < 32; step *= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
        if (MEMBER == 0 && IS_TOPIC(j)) partial[warp * K + TOPIC(j)] = x;
    }
    __syncthreads();
}

// Sum what `add_groups` left, for one topic.
__device__ __forceinline__ REAL add_warps(const REAL* partial, int K, int k)
{
    REAL sum = 0;
#pragma unroll 4
    for (int warp = 0; warp < blockDim.x / 32; warp++) sum += partial[warp * K + k];
    return sum;
}

// Sum the numbers of a document's entries.
__device__ __forceinline__ double sum_numbers(const Document& d)
{
    double length[1] = {0};
    for (int i = threadIdx.x; i < d.size; i += blockDim.x) length[0] += d.numbers[i];
    block_sum<1>(length);
    return length[0];
}

__device__ __forceinline__ void load(const REAL* vector, int K, bool wanted, REAL* mine)
{
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) mine[j] = wanted && IS_TOPIC(j) ? vector[TOPIC(j)] : (REAL)0;
}

// Some entries at once, as a group of lanes has them; those beyond the last have no number and no topics.
struct Entries {
    int i[AT_ONCE];  // -1: beyond the last
    REAL number[AT_ONCE];
    REAL p[AT_ONCE][PER_LANE];

    // Passes go to and fro: rows that the last one read in the end are still near.
    __device__ __forceinline__ void load_from(const Document& d, int turn, int first, int last, bool backwards)
    {
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
            const int place = turn + e * PER_TURN + MEMBER;
            const bool wanted = place < last;
            i[e] = !wanted ? -1 : backwards ? first + last - 1 - place : place;
            number[e] = wanted ? d.numbers[i[e]] : (REAL)0;
            load(d.topics + (wanted ? (size_t)d.words[i[e]] * d.K : 0), d.K, wanted, p[e]);
        }
    }

    // Products with a vector over topics.
    __device__ __forceinline__ void multiply(const REAL* vector, REAL* found) const
    {
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
            REAL sum = 0;
#pragma unroll
            for (int j = 0; j < PER_LANE; j++) sum += p[e][j] * vector[j];
            found[e] = sum;
        }
#pragma unroll
        for (int step = LANES / 2; step; step /= 2)
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) found[e] += __shfl_xor_sync(ALL_LANES, found[e], step);
    }
};

// Where sums over documents go: to the table of words, or to a row for each entry.
struct Output {
    double* table;      // (V, K)
    const int* places;  // (size,): of the document's entries
    REAL* by_entry;     // (entries, K)
    int sorted;

    // Where the row of an entry begins. Read before anything is added: the compiler cannot know that words stay.
    __device__ __forceinline__ size_t row(const Document& d, int i) const
    {
        return (size_t)(sorted ? places[i] : d.words[i]) * d.K;
    }

    __device__ __forceinline__ void add(size_t at, REAL value, bool is_first) const
    {
        if (!sorted) atomicAdd(table + at, (double)value);
        else by_entry[at] = is_first ? value : by_entry[at] + value;
    }
};

// Add scale * sum_i number_i p_i / (p_i t) to sums, over entries from one to another: a part of a sweep, less its factor
// t. docs/math.md eq. (66). Where notes are given they are what p_i is multiplied by in the sum.
__device__ __forceinline__ void sweep_part(
    const Document& d, int first, int last, bool backwards, const REAL* own, REAL scale, REAL* sums, REAL* notes)
{
    for (int turn = first + TURN; turn < last; turn += AT_ONCE * PER_TURN) {
        Entries at;
        at.load_from(d, turn, first, last, backwards);
        REAL r[AT_ONCE];
        at.multiply(own, r);
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
            REAL share = scale * at.number[e] / (r[e] + TINY);
#pragma unroll
            for (int j = 0; j < PER_LANE; j++) sums[j] += share * at.p[e][j];
            if (notes && LANE == 0 && at.i[e] >= 0) notes[at.i[e]] = share;
        }
    }
}

// Go back through a sweep at some entries: sum what their products p_i t send back, and note the numbers that t and g t
// are multiplied by. Entries beyond the notes send theirs to the output.
template <bool is_noted>
__device__ __forceinline__ void reverse_part(
    const Document& d, int first, int last, bool backwards, const REAL* own, const REAL* own_sum, REAL* by_product,
    REAL* t_notes, REAL* sum_notes, const Output& out)
{
    const int K = d.K;
    for (int turn = first + TURN; turn < last; turn += AT_ONCE * PER_TURN) {
        Entries at;
        at.load_from(d, turn, first, last, backwards);
        REAL r[AT_ONCE], through[AT_ONCE];
        at.multiply(own, r);
        at.multiply(own_sum, through);
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
            const int i = at.i[e];
            REAL inverse = 1 / (r[e] + TINY), share = at.number[e] * inverse, by_r = -through[e] * share * inverse;
#pragma unroll
            for (int j = 0; j < PER_LANE; j++) by_product[j] += by_r * at.p[e][j];
            if (is_noted && LANE == 0 && i >= 0) t_notes[i] = by_r, sum_notes[i] = share;
            if (is_noted || i < 0) continue;
            const size_t row = out.row(d, i);
#pragma unroll
            for (int j = 0; j < PER_LANE; j++)
                if (IS_TOPIC(j)) out.add(row + TOPIC(j), share * own_sum[j] + by_r * own[j], false);
        }
    }
}

// --- kernels

// Label-free inference of documents, docs/math.md eq. (66), and their part of the bound, eq. (68): of its divergences
// the part that is the same for all documents is left to the caller. The results of the last n_kept sweeps are kept: the
// way back needs all of them, and to read them is cheaper than to make the sweeps once more.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, BLOCKS(PER_LANE <= 5 ? 4 : 3)) forward(
    const int* words, const REAL* numbers, const long long* starts,  // documents: (entries,), (entries,), (N + 1,)
    const REAL* topics, const REAL* doc_prior,                       // (V, K), (K,)
    REAL* gammas, double* likelihoods, double* divergences,          // written: (N, n_kept, K), (N,), (N,)
    int K, int n_sweeps, int n_kept)
{
    extern __shared__ __align__(16) char shared[];
    const long long begin = starts[blockIdx.x];
    const Document d = {words + begin, numbers + begin, (int)(starts[blockIdx.x + 1] - begin), topics, K};
    REAL *t = (REAL*)shared, *at = t + K, *partial = at + K;
    const double length = sum_numbers(d);
    for (int k = threadIdx.x; k < K; k += blockDim.x) t[k] = exp_digamma(at[k] = doc_prior[k] + (REAL)(length / K));
    __syncthreads();
    REAL own[PER_LANE];
    for (int s = 0; s < n_sweeps; s++) {
        REAL sums[PER_LANE] = {};
        load(t, K, true, own);
        sweep_part(d, 0, d.size, s % 2, own, 1, sums, nullptr);
        add_groups(sums, K, partial);
        const int place = s - n_sweeps + n_kept;
        REAL* kept = gammas + ((size_t)blockIdx.x * n_kept + (place > 0 ? place : 0)) * K;
        for (int k = threadIdx.x; k < K; k += blockDim.x) {
            t[k] = exp_digamma(at[k] = doc_prior[k] + t[k] * add_warps(partial, K, k));
            if (place >= 0) kept[k] = at[k];
        }
        __syncthreads();
    }

    load(t, K, true, own);
    double sums[4] = {0, 0, 0, 0};  // of logarithms, of gamma, of its divergence, of the prior
    for (int turn = TURN; turn < d.size; turn += AT_ONCE * PER_TURN) {
        Entries some;
        some.load_from(d, turn, 0, d.size, n_sweeps % 2);
        REAL r[AT_ONCE];
        some.multiply(own, r);
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++) {
            double each = some.number[e] * log((double)(r[e] + TINY));
            sums[0] += LANE == 0 ? each : 0;
        }
    }
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
        double g = at[k], prior = doc_prior[k];
        sums[1] += g, sums[2] += (g - prior) * digamma(g) - lgamma(g), sums[3] += prior;
    }
    block_sum<4>(sums);
    if (threadIdx.x == 0) {
        const double of_total = digamma(sums[1]);
        likelihoods[blockIdx.x] = sums[0] - length * of_total;
        divergences[blockIdx.x] = sums[2] + lgamma(sums[1]) - (sums[1] - sums[3]) * of_total;
    }
}

// Derivatives of the documents' bounds, and of what else depends on gamma, by the topics: docs/math.md eq. (69), (70).
//
// A vector over topics is kept of every sweep's factors t, and one of g t, what its sums weigh; before that is known its
// place holds gamma. Vectors 0 .. n_sweeps are the factors, the others follow; the notes of an entry are the numbers that
// they are multiplied by.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, BLOCKS(PER_LANE <= 5 ? 3 : 2)) reverse(
    const int* words, const REAL* numbers, const long long* starts,  // as in forward
    const REAL* topics, const REAL* doc_prior,
    const REAL* gammas, const REAL* grad, const REAL* weights,       // (N, n_sweeps, K), (N, K), (N,)
    double* table,                          // added to, unless sorted: (V, K)
    const int* places, REAL* by_entry,      // if sorted: (entries,), the row of an entry; written: (entries, K)
    int sorted, int K, int n_sweeps, int noted)
{
    extern __shared__ __align__(16) char shared[];
    const long long begin = starts[blockIdx.x];
    const int size = (int)(starts[blockIdx.x + 1] - begin), n = n_sweeps, n_vectors = 2 * n + 1;
    REAL *vectors = (REAL*)shared, *notes = vectors + n_vectors * K, *g = notes + n_vectors * noted;
    REAL *sums = g + K, *partial = sums + 2 * K;
    const Document d = {words + begin, numbers + begin, size, topics, K};
    const Output out = {table, places + begin, by_entry, sorted};
    const int n_noted = size < noted ? size : noted;
    const REAL weight = weights[blockIdx.x];
    const REAL *before = gammas + (size_t)blockIdx.x * n * K, *last = before + (n - 1) * K;
    const REAL* slopes = grad + (size_t)blockIdx.x * K;
    const double length = sum_numbers(d);
    REAL own[PER_LANE], own_sum[PER_LANE];

    for (int s = 0; s <= n; s++)
        for (int k = threadIdx.x; k < K; k += blockDim.x) {
            const REAL at = s == 0 ? doc_prior[k] + (REAL)(length / K) : before[(s - 1) * K + k];
            vectors[s * K + k] = exp_digamma(at);
            if (s < n) vectors[(n + 1 + s) * K + k] = at;
        }
    __syncthreads();

    {  // The bound itself.
        REAL *t = vectors + n * K, of_shares[PER_LANE] = {};
        load(t, K, true, own);
        sweep_part(d, 0, n_noted, (n + 1) % 2, own, -weight, of_shares, notes + n * noted);
        for (int turn = n_noted + TURN; turn < size; turn += AT_ONCE * PER_TURN) {
            Entries at;
            at.load_from(d, turn, n_noted, size, (n + 1) % 2);
            REAL r[AT_ONCE];
            at.multiply(own, r);
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) {
                const size_t row = at.i[e] >= 0 ? out.row(d, at.i[e]) : 0;
                REAL share = -weight * at.number[e] / (r[e] + TINY);
#pragma unroll
                for (int j = 0; j < PER_LANE; j++) {
                    of_shares[j] += share * at.p[e][j];
                    if (at.i[e] >= 0 && IS_TOPIC(j)) out.add(row + TOPIC(j), share * own[j], true);
                }
            }
        }
        add_groups(of_shares, K, partial);
        for (int k = threadIdx.x; k < K; k += blockDim.x) {
            REAL moved = last[k] - doc_prior[k], by_t = weight * moved + add_warps(partial, K, k) * t[k];
            g[k] = slopes[k] + by_t * trigamma(last[k]);
            sums[(n - 1) % 2 * K + k] = moved / t[k - K];  // of the last sweep, as in the NumPy reference
        }
    }

    for (int s = n - 1; s >= 0; s--) {
        REAL *t = vectors + s * K, *by_sum = vectors + (n + 1 + s) * K;
        for (int k = threadIdx.x; k < K; k += blockDim.x) {  // the threads that own g[k] own these elements too
            REAL at = by_sum[k], slope = trigamma(at);
            if (s > 0) sums[(s - 1) % 2 * K + k] = (at - doc_prior[k]) / t[k - K];
            by_sum[k] = g[k] * t[k];
            g[k] = slope;  // what the next g is multiplied by, until it is known
        }
        __syncthreads();
        REAL by_product[PER_LANE] = {}, *t_notes = notes + s * noted, *sum_notes = notes + (n + 1 + s) * noted;
        load(by_sum, K, true, own_sum);
        const bool back = (s + 1) % 2;  // this pass begins where the last one, of s + 1, ended
        load(t, K, true, own);
        reverse_part<true>(d, 0, n_noted, back, own, own_sum, by_product, t_notes, sum_notes, out);
        reverse_part<false>(d, n_noted, size, back, own, own_sum, by_product, t_notes, sum_notes, out);
        if (s == 0) break;  // even proportions do not depend on the topics
        add_groups(by_product, K, partial);
        for (int k = threadIdx.x; k < K; k += blockDim.x)  // g of before is by_sum / t
            g[k] *= by_sum[k] * sums[s % 2 * K + k] + add_warps(partial, K, k) * t[k];
    }
    __syncthreads();

    // Entries that were noted: numbers times vectors, summed over sweeps.
    for (int first = (threadIdx.x / LANES) * TILE; first < n_noted; first += (blockDim.x / LANES) * TILE) {
        REAL tile[TILE][PER_LANE] = {};
        size_t row[TILE];
#pragma unroll
        for (int e = 0; e < TILE; e++) row[e] = first + e < n_noted ? out.row(d, first + e) : 0;
        for (int v = 0; v < n_vectors; v++) {
            REAL vector[PER_LANE];
            load(vectors + v * K, K, true, vector);
#pragma unroll
            for (int e = 0; e < TILE; e++) {
                REAL number = first + e < n_noted ? notes[v * noted + first + e] : (REAL)0;
#pragma unroll
                for (int j = 0; j < PER_LANE; j++) tile[e][j] += number * vector[j];
            }
        }
#pragma unroll
        for (int e = 0; e < TILE; e++)
#pragma unroll
            for (int j = 0; j < PER_LANE; j++)
                if (first + e < n_noted && IS_TOPIC(j)) out.add(row[e] + TOPIC(j), tile[e][j], true);
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
