// Something for a device to be busy with: a plain product of n x n matrices. gpu-check runs it beside transfers; it is
// no part of what is shipped.

// c = a x b, one element for each thread; all of 32-bit floats.
extern "C" __global__ void __launch_bounds__(256)
    tender_product(unsigned long long a, unsigned long long b, unsigned long long c, unsigned long long n) {
    const float* left = reinterpret_cast<const float*>(a);
    const float* right = reinterpret_cast<const float*>(b);
    unsigned long long at = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= n * n) {
        return;
    }
    unsigned long long row = at / n, column = at % n;
    float sum = 0;
    for (unsigned long long i = 0; i < n; i++) {
        sum += left[row * n + i] * right[i * n + column];
    }
    reinterpret_cast<float*>(c)[at] = sum;
}
