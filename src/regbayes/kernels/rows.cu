// Rows of iLSVM and of large margins on a GPU: sweeps over binary features, their reverse, and losses at given scores.
// The NumPy functions of sweeps.py and margins/newton.py are the law, arrays_*.py say the same in array operations.
// Arrays are feature-major, (K, n): neighbouring threads have neighbouring rows. A sum over rows is written in parts,
// one for each block of threads, so that the same rows give the same bits. Compiled with REAL (float or double) and
// WIDTH (features, a multiple of STEP) defined. Which arrays may be missing is said by numbers: has_...

#define STEP 10       // features that are swept at one width
#define BOX_TURNS 16  // rows that each thread takes in boxes

struct __align__(2 * sizeof(REAL)) Pair { REAL first, second; };

__device__ __forceinline__ double sum_lanes(double x)
{
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// Sum several numbers over the threads of a block, and write them with a distance between them.
template <int count> __device__ __forceinline__ void write_sums(const double* x, double* sums, size_t distance)
{
    __shared__ double parts[count][32];
    for (int j = 0; j < count; j++)
        if (const double part = sum_lanes(x[j]); threadIdx.x % 32 == 0) parts[j][threadIdx.x / 32] = part;
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
template <int W, class Take>
__device__ __forceinline__ void take_features(REAL* left, const Pair* table, int K, const Take& take)
{
#pragma unroll 1
    for (int k = WIDTH - W; k < WIDTH - W + STEP && k < K; k++) {
        const REAL found = take(k, left[0]);
#pragma unroll
        for (int j = 1; j < W; j += 2) {
            const Pair m = table[k * (WIDTH / 2) + j / 2];
            left[j - 1] = left[j] + m.first * found;
            if (j + 1 < W) left[j] = left[j + 1] + m.second * found;
        }
    }
    if constexpr (W > STEP) take_features<W - STEP>(left, table, K, take);
}

// Bring a table (WIDTH, WIDTH) into shared memory, and the constants (WIDTH,) behind it, which are returned.
__device__ __forceinline__ const REAL* load_table(const REAL* table, Pair* there)
{
    for (int i = threadIdx.x; i < WIDTH * (WIDTH + 1); i += blockDim.x) ((REAL*)there)[i] = table[i];
    __syncthreads();
    return (const REAL*)there + WIDTH * WIDTH;
}

// One sweep over a block of features, docs/math.md eq. (31): psi (K, n), which may be the products (K, n). Row k of the
// table is -coupling_jk of j = k + 1 ...; sums (2, blocks) are of psi times logits and of entropies.
extern "C" __global__ void __launch_bounds__(128, WIDTH <= 40 ? 4 : 3) sweep(
    const REAL* products, const REAL* table, const REAL* weights, REAL* psi, double* sums,
    int n, int K, int n_blocks, int has_weights)
{
    __shared__ Pair known[WIDTH / 2 * (WIDTH + 1)];
    const REAL* constant = load_table(table, known);
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    double by_logit = 0, entropy = 0, product = 1, weight = row >= n ? 0 : has_weights ? weights[row] : 1;
    if (row < n) {
        REAL logits[WIDTH];
#pragma unroll
        for (int k = 0; k < WIDTH; k++) logits[k] = k < K ? products[(size_t)k * n + row] + constant[k] : (REAL)0;
        take_features<WIDTH>(logits, known, K, [&](int k, REAL logit) {
            const REAL size = fabs(logit), odds = exp(-size), share = 1 / (1 + odds);
            const REAL found = logit < 0 ? odds * share : share;
            by_logit += found * logit;
            entropy += size * (odds * share), product *= 1 + (double)odds;  // whose logarithm is the rest of it
            return psi[(size_t)k * n + row] = found;
        });
    }
    const double total[2] = {weight * by_logit, weight * (entropy + log(product))};
    write_sums<2>(total, sums + blockIdx.x, n_blocks);
}

// One sweep in reverse over a block of features, from the last to the first, docs/math.md eq. (33): the gradient by
// theta less weight psi is left, (K, n), which may be the gradient by psi. Row r of the table is -coupling_kj of
// k = K - 1 - r and j = k - 1 ...
extern "C" __global__ void __launch_bounds__(128, WIDTH <= 40 ? 4 : 3) reverse(
    REAL* left, const REAL* gradient, const REAL* psi, const REAL* table, const REAL* weights,
    double weight, int n, int K, int has_gradient, int has_weights)
{
    __shared__ Pair known[WIDTH / 2 * (WIDTH + 1)];
    const REAL* constant = load_table(table, known);
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    const REAL count = has_weights ? weights[row] : (REAL)1, scale = (REAL)weight * count;
    REAL incoming[WIDTH];
#pragma unroll
    for (int r = 0; r < WIDTH; r++) {
        const REAL given = has_gradient && r < K ? gradient[(size_t)(K - 1 - r) * n + row] : (REAL)0;
        incoming[r] = given - count * constant[r];
    }
    const auto at = [&](int r) { return r < K ? psi[(size_t)(K - 1 - r) * n + row] : (REAL)0; };
    REAL next = at(0), after = at(1);  // two features are on their way while one is taken
    take_features<WIDTH>(incoming, known, K, [&](int r, REAL own) {
        const REAL here = next;
        next = after, after = at(r + 2);
        return left[(size_t)(K - 1 - r) * n + row] = own * (here * (1 - here)) - scale * here;
    });
}

// --- losses of rows at given scores

enum { LABELS, SIGNS, BYTES, TUBE, BENT, ALL_BENT };  // what targets (n,) or (outputs, n) of boxes are

// Squared hinges and tubes: multipliers over scores (outputs, n), to which a constant (outputs,) is added. Or how
// multipliers, which are the targets then, follow a change of scores. Prices C have distances between outputs and rows;
// sums (2, outputs, parts) are of losses and of what is written. A block takes a part of the rows of one output.
extern "C" __global__ void __launch_bounds__(256, 8) boxes(
    REAL* scores, const REAL* constant, const REAL* C, const void* targets, double* sums, double margin_or_epsilon,
    int n, int n_outputs, int n_parts, int C_output, int C_row, int distance, int kind, int has_constant)
{
    const int output = blockIdx.x % n_outputs, part = blockIdx.x / n_outputs;
    const REAL shift = has_constant ? constant[output] : (REAL)0, edge = (REAL)margin_or_epsilon;
    const REAL* prices = C + (size_t)output * C_output;
    REAL* own = scores + (size_t)output * n;
    double total[2] = {0, 0};
    for (int turn = 0; turn < BOX_TURNS; turn++) {
        const int row = (part * BOX_TURNS + turn) * blockDim.x + threadIdx.x;
        if (row >= n) break;
        const REAL score = own[row] + shift, price = 2 * prices[(size_t)row * C_row];
        REAL target = 1;
        if (kind == LABELS) target = ((const long long*)targets)[row] == output ? 1 : -1;
        else if (kind == BYTES) target = ((const signed char*)targets)[(size_t)output * distance + row];
        else if (kind != ALL_BENT) target = ((const REAL*)targets)[(size_t)output * distance + row];
        const REAL away = kind == TUBE ? target - score : edge - target * score;
        const REAL sign = kind == TUBE ? (away < 0 ? (REAL)-1 : (REAL)1) : target;
        REAL missed = kind == TUBE ? away * sign - edge : away;
        if (missed < 0 || kind >= BENT || sign == 0) missed = 0;
        const REAL found = kind < BENT ? price * missed * sign : target != 0 ? price * score : (REAL)0;
        total[0] += 0.5 * price * missed * missed, total[1] += own[row] = found;
    }
    write_sums<2>(total, sums + (size_t)output * n_parts + part, (size_t)n_outputs * n_parts);
}

// Smoothed multi-class hinges: multipliers over scores (classes, n), to which a constant (classes,) is added; C and
// labels are (n,), costs (classes, n) beside them are one where there are none. Or how multipliers, which are beside then,
// follow a change of scores. Sums (3 + classes, blocks) are of losses, excess, bias and what is written. A thread takes a
// row, whose classes are in shared memory; the sum of its multipliers is found by Newton's method from below.
extern "C" __global__ void classes(
    REAL* scores, const REAL* constant, const REAL* C, const long long* labels, const REAL* beside, double* sums,
    double smoothing, int n, int n_classes, int n_blocks, int distance, int has_constant, int has_cost, int is_bent)
{
    extern __shared__ __align__(16) char shared[];
    const int row = blockIdx.x * blockDim.x + threadIdx.x, width = blockDim.x + 1;  // odd: columns are read, too
    const int is_row = row < n, label = is_row ? (int)labels[row] : 0;
    REAL* const mine = (REAL*)shared + threadIdx.x;
    const REAL delta = (REAL)smoothing, rest = 1 - delta, price = is_row ? 2 * C[row] : (REAL)0;
    const auto counts = [&](int c) {  // classes without a multiplier have no say in a change
        return c != label && (!is_bent || (is_row && beside[(size_t)c * distance + row] < 0));
    };
#pragma unroll 4
    for (int c = 0; c < n_classes; c++)
        mine[c * width] = (is_row ? scores[(size_t)c * n + row] : (REAL)0) + (has_constant ? constant[c] : (REAL)0);
    const REAL own = mine[label * width];
    REAL worst = 0, sum = 0, least = 0, all = 0, squares = 0;
    int count = 0;
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
        if (is_row) scores[(size_t)c * n + row] = omega;
    }
    mine[label * width] = -all;
    if (is_row) scores[(size_t)label * n + row] = -all;
    const double ridge = 0.5 / (price > 0 ? price : (REAL)1), exact = 0.5 * price * worst * worst;
    const double loss = ridge * ((1 - smoothing) * all * all + smoothing * squares) + not_a_number;
    const double found[3] = {loss, loss - exact, exact - loss + ridge * smoothing * ((double)all * all - squares)};
    write_sums<3>(found, sums + blockIdx.x, n_blocks);
    __syncthreads();
    for (int c = threadIdx.x / 32; c < n_classes; c += blockDim.x / 32) {
        double part = 0;
        for (int i = threadIdx.x % 32; i < blockDim.x; i += 32) part += ((REAL*)shared)[c * width + i];
        part = sum_lanes(part);
        if (threadIdx.x % 32 == 0) sums[(size_t)(3 + c) * n_blocks + blockIdx.x] = part;
    }
}
