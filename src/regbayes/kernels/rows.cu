// Rows of iLSVM and of large margins on a GPU: sweeps over binary features, their reverse, and losses at given scores.
//
// The NumPy functions of sweeps.py and framework/newton.py are the law, arrays.py says the same in array operations.
// Arrays are feature-major, (K, n): neighbouring threads have neighbouring rows. A sum over rows is written in parts,
// one for each block of threads, so that the same rows give the same bits. Compiled with REAL (float or double) and
// WIDTH (features, a multiple of STEP) defined.

#define STEP 10          // features that are swept at one width
#define ROW_TURNS 4      // rows that each thread takes in sweep and reverse
#define BOX_TURNS 16     // rows that each thread takes in boxes,
#define AT_ONCE 4        // and how many of them at once
#define ALL_LANES 0xffffffffu
#define ROW(turns) ((blockIdx.x * turns + turn) * blockDim.x + threadIdx.x)

struct __align__(2 * sizeof(REAL)) Pair { REAL first, second; };

__device__ __forceinline__ double sum_lanes(double x)
{
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

// Sum several numbers over the threads of a block, and write them with a distance between them.
template <int count> __device__ __forceinline__ void write_sums(const double* x, double* sums, size_t distance)
{
    __shared__ double parts[count][32];
    for (int j = 0; j < count; j++) {
        const double part = sum_lanes(x[j]);
        if (threadIdx.x % 32 == 0) parts[j][threadIdx.x / 32] = part;
    }
    __syncthreads();
    if (threadIdx.x >= count) return;
    double sum = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) sum += parts[threadIdx.x][warp];
    sums[threadIdx.x * distance] = sum;
}

// --- binary features, a thread for each row

// Take features in order. What is left to do of a row is in registers: W numbers, of which the first is the next
// feature's. When that is known the others hear of it and move up, so that a loop over features has a short body and no
// register is looked up by number. Every STEP features W falls.
template <int W, class Row>
__device__ __forceinline__ void take_features(REAL* left, const Pair* table, int K, Row& row)
{
#pragma unroll 1
    for (int k = WIDTH - W; k < WIDTH - W + STEP && k < K; k++) {
        const REAL found = row.take(k, left[0]);
#pragma unroll
        for (int j = 1; j < W; j += 2) {
            const Pair m = table[k * (WIDTH / 2) + j / 2];
            left[j - 1] = left[j] + m.first * found;
            if (j + 1 < W) left[j] = left[j + 1] + m.second * found;
        }
    }
    if constexpr (W > STEP) take_features<W - STEP>(left, table, K, row);
}

struct ForwardRow {
    REAL* psi;
    size_t n;
    double by_logit, entropy, product;

    __device__ __forceinline__ REAL take(int k, REAL logit)
    {
        const REAL size = fabs(logit), odds = exp(-size), share = 1 / (1 + odds);
        const REAL found = logit < 0 ? odds * share : share;
        by_logit += found * logit;
        entropy += size * (odds * share), product *= 1 + (double)odds;  // the entropy, less a logarithm in the end
        return psi[k * n] = found;
    }
};

struct ReverseRow {
    const REAL* psi;
    REAL* written;
    size_t n;
    int K;
    REAL weight, next, after;  // two features are on their way while one is taken

    __device__ __forceinline__ REAL take(int k, REAL incoming)
    {
        const REAL here = next;
        next = after;
        if (k + 2 < K) after = psi[(K - 3 - k) * n];
        return written[(K - 1 - k) * n] = incoming * (here * (1 - here)) - weight * here;
    }
};

// Bring the table and the constants behind it into shared memory.
__device__ __forceinline__ void load_table(const REAL* table, Pair* there)
{
    for (int i = threadIdx.x; i < WIDTH * (WIDTH + 1); i += blockDim.x) ((REAL*)there)[i] = table[i];
    __syncthreads();
}

// One sweep over a block of features: docs/math.md eq. (31).
extern "C" __global__ void __launch_bounds__(128, WIDTH <= 40 ? 4 : 3) sweep(
    const REAL* products,  // (K, n)
    const REAL* other,     // (K, n), if any: what features of other blocks take off
    const REAL* table,     // (WIDTH, WIDTH): row k is -coupling_jk of j = k + 1 ...; behind it constants, (WIDTH,)
    const REAL* weights,   // (n,), if any: how often rows count
    REAL* psi,             // written: (K, n); may be the products
    double* sums,          // written: (2, blocks): psi times logits, and entropies
    int n, int K, int n_blocks, int has_other, int has_weights)
{
    __shared__ Pair known[WIDTH / 2 * (WIDTH + 1)];
    load_table(table, known);
    double total[2] = {0, 0};
    for (int turn = 0; turn < ROW_TURNS; turn++) {
        const int row = ROW(ROW_TURNS);
        if (row >= n) break;
        REAL logits[WIDTH];
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            logits[k] = k < K ? products[(size_t)k * n + row] + ((REAL*)known)[WIDTH * WIDTH + k] : (REAL)0;
        if (has_other) {
#pragma unroll
            for (int k = 0; k < WIDTH; k++) logits[k] -= k < K ? other[(size_t)k * n + row] : (REAL)0;
        }
        ForwardRow mine = {psi + row, (size_t)n, 0, 0, 1};
        take_features<WIDTH>(logits, known, K, mine);
        const double weight = has_weights ? weights[row] : (REAL)1;
        total[0] += weight * mine.by_logit, total[1] += weight * (mine.entropy + log(mine.product));
    }
    write_sums<2>(total, sums + blockIdx.x, n_blocks);
}

// One sweep in reverse over a block of features, from the last to the first: docs/math.md eq. (33).
extern "C" __global__ void __launch_bounds__(128, WIDTH <= 40 ? 4 : 3) reverse(
    const REAL* gradient,  // (K, n), if any: by the features, with what later blocks of features add
    const REAL* psi,       // (K, n)
    const REAL* table,     // (WIDTH, WIDTH): row r is -coupling_kj of k = K - 1 - r, j = k - 1 ...; constants, (WIDTH,)
    const REAL* weights,   // (n,), if any: how often rows count
    REAL* left,            // written: (K, n): by theta, less weight psi; may be the gradient
    double weight, int n, int K, int has_gradient, int has_weights)
{
    __shared__ Pair known[WIDTH / 2 * (WIDTH + 1)];
    load_table(table, known);
    for (int turn = 0; turn < ROW_TURNS; turn++) {
        const int row = ROW(ROW_TURNS);
        if (row >= n) break;
        const REAL count = has_weights ? weights[row] : (REAL)1;
        const REAL last = psi[(size_t)(K - 1) * n + row], before = K > 1 ? psi[(size_t)(K - 2) * n + row] : (REAL)0;
        ReverseRow mine = {psi + row, left + row, (size_t)n, K, (REAL)weight * count, last, before};
        REAL incoming[WIDTH];
#pragma unroll
        for (int r = 0; r < WIDTH; r++) {
            const REAL given = has_gradient && r < K ? gradient[(size_t)(K - 1 - r) * n + row] : (REAL)0;
            incoming[r] = given - count * ((REAL*)known)[WIDTH * WIDTH + r];
        }
        take_features<WIDTH>(incoming, known, K, mine);
    }
}

// --- losses of rows at given scores

enum { LABELS, SIGNS, BYTES, TUBE, BENT, ALL_BENT };  // targets of boxes

// Squared hinges and tubes, or how their multipliers follow scores. A block takes some rows of one output.
extern "C" __global__ void boxes(
    REAL* scores,          // (outputs, n): overwritten by multipliers, or by what they change
    const REAL* constant,  // (outputs,), if any: added to scores
    const REAL* C,         // prices, with distances between outputs and between rows
    const void* targets,   // (n,) labels; or (outputs, n): signs, signs of a byte, values, multipliers
    double* sums,          // written: (2, outputs, parts): losses, and what is written
    double margin,         // or epsilon
    int n, int n_outputs, int n_parts, int C_output, int C_row, int distance, int kind, int has_constant)
{
    const int output = blockIdx.x % n_outputs, part = blockIdx.x / n_outputs;
    const REAL shift = has_constant ? constant[output] : (REAL)0, edge = (REAL)margin;
    const REAL* prices = C + (size_t)output * C_output;
    REAL* own = scores + (size_t)output * n;
    double total[2] = {0, 0};
    for (int turn = 0; turn < BOX_TURNS; turn += AT_ONCE) {
        const int first = (part * BOX_TURNS + turn) * blockDim.x + threadIdx.x;
        REAL scores_of[AT_ONCE], targets_of[AT_ONCE], prices_of[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {  // all on their way before the first is looked at
            const int row = first + i * blockDim.x;
            const size_t at = (size_t)output * distance + row;
            REAL target = 0;
            if (row >= n) continue;
            if (kind == LABELS) target = ((const long long*)targets)[row] == output ? 1 : -1;
            else if (kind == BYTES) target = ((const signed char*)targets)[at];
            else if (kind != ALL_BENT) target = ((const REAL*)targets)[at];
            targets_of[i] = target, scores_of[i] = own[row] + shift, prices_of[i] = 2 * prices[(size_t)row * C_row];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (first + i * (int)blockDim.x >= n) continue;
            REAL score = scores_of[i], target = targets_of[i], price = prices_of[i], missed = 0;
            if (kind == TUBE) {
                const REAL away = target - score;
                missed = fabs(away) - edge, target = away < 0 ? -1 : 1;
            } else if (kind < BENT) missed = kind == BYTES && target == 0 ? 0 : edge - target * score;
            if (missed < 0) missed = 0;
            total[0] += 0.5 * price * missed * missed;
            REAL found = price * missed * target;
            if (kind >= BENT) found = kind == ALL_BENT || target != 0 ? price * score : (REAL)0;
            total[1] += own[first + i * (int)blockDim.x] = found;
        }
    }
    write_sums<2>(total, sums + (size_t)output * n_parts + part, (size_t)n_outputs * n_parts);
}

// Smoothed multi-class hinges, or how their multipliers follow scores. A thread takes a row, whose classes are in shared
// memory; the sum of its multipliers is found by Newton's method from below.
extern "C" __global__ void classes(
    REAL* scores,             // (classes, n): overwritten by multipliers, or by what they change
    const REAL* constant,     // (classes,), if any: added to scores
    const REAL* C,            // (n,)
    const long long* labels,  // (n,)
    const REAL* beside,       // (classes, n): costs, if they are not one; or multipliers, whose change is asked for
    double* sums,             // written: (3 + classes, blocks): loss, excess, bias; what is written
    double smoothing, int n, int n_classes, int n_blocks, int distance, int has_constant, int has_cost, int is_bent)
{
    extern __shared__ __align__(16) char shared[];
    const int row = blockIdx.x * blockDim.x + threadIdx.x, width = blockDim.x + 1;  // odd: columns are read, too
    const bool is_row = row < n;
    REAL* const mine = (REAL*)shared + threadIdx.x;
    const REAL delta = (REAL)smoothing, rest = 1 - delta, price = is_row ? 2 * C[row] : (REAL)0;
    const int label = is_row ? (int)labels[row] : 0;
#pragma unroll 4
    for (int c = 0; c < n_classes; c++)
        mine[c * width] = (is_row ? scores[(size_t)c * n + row] : (REAL)0) + (has_constant ? constant[c] : (REAL)0);
    const auto counts = [&](int c) {  // classes without a multiplier have no say in a change
        return c != label && (!is_bent || (is_row && beside[(size_t)c * distance + row] < 0));
    };
    const REAL own = mine[label * width];
    REAL worst = 0, sum = 0, least = 0, all = 0, squares = 0;
    int count = 0;
#pragma unroll 4
    for (int c = 0; c < n_classes; c++) {
        const REAL cost = is_bent ? (REAL)0 : has_cost && is_row ? beside[(size_t)c * distance + row] : (REAL)1;
        const REAL away = counts(c) ? mine[c * width] - own + cost : (REAL)0;
        worst = away > worst ? away : worst;
        sum += away, count += is_bent && counts(c);
        mine[c * width] = price * away;
    }
    const double not_a_number = sum - sum;  // if one is among the scores, and zero if none is
    if (is_bent) least = rest * price * sum / (delta + rest * count);
    for (int before = -1; !is_bent && count != before;) {
        before = count, count = 0, sum = 0;
        for (int c = 0; c < n_classes; c++)
            if (mine[c * width] > least) sum += mine[c * width], count++;
        least = rest * sum / (delta + rest * count);
    }
    for (int c = 0; c < n_classes; c++) {
        REAL omega = counts(c) ? (mine[c * width] - least) / delta : (REAL)0;
        if (!is_bent) omega = omega > 0 ? -omega : (REAL)0;
        all += omega, squares += omega * omega;
        mine[c * width] = omega;
    }
    mine[label * width] = -all;
#pragma unroll 4
    for (int c = 0; c < n_classes; c++) if (is_row) scores[(size_t)c * n + row] = mine[c * width];
    const double ridge = 0.5 / (price > 0 ? price : (REAL)1), exact = 0.5 * price * worst * worst;
    const double loss = ridge * ((1 - smoothing) * all * all + smoothing * squares) + not_a_number;
    double found[3] = {loss, loss - exact, exact - loss + ridge * smoothing * ((double)all * all - squares)};
    write_sums<3>(found, sums + blockIdx.x, n_blocks);
    __syncthreads();
    for (int c = threadIdx.x / 32; c < n_classes; c += blockDim.x / 32) {
        double part = 0;
        for (int i = threadIdx.x % 32; i < blockDim.x; i += 32) part += ((REAL*)shared)[c * width + i];
        part = sum_lanes(part);
        if (threadIdx.x % 32 == 0) sums[(size_t)(3 + c) * n_blocks + blockIdx.x] = part;
    }
}
