// A CUDA runtime for a machine without a GPU, to ask PyTorch what it refuses (stand_in.py).
//
// Device memory is host memory, copies copy, and kernels do nothing: a result means nothing, but what PyTorch
// checks before it launches a kernel is checked as on a GPU of capability 8.0. What is not defined here,
// stand_in.py defines to do nothing and report success.

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#define DONE return cudaSuccess
#define MAKE(name, type, ...) \
  cudaError_t name(type* made, ##__VA_ARGS__) { *made = (type)&handle; DONE; }

static long handle[64];

extern "C" {

// the device
cudaError_t cudaGetDeviceCount(int* count) { *count = 1; DONE; }
cudaError_t cudaGetDevice(int* device) { *device = 0; DONE; }
cudaError_t cudaDriverGetVersion(int* version) { *version = CUDART_VERSION; DONE; }
cudaError_t cudaRuntimeGetVersion(int* version) { *version = CUDART_VERSION; DONE; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { *can = 0; DONE; }
cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int) { strncpy(id, "0000:00:00.0", size); DONE; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* most) { *least = 0; *most = -3; DONE; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* is, int) {
  memset(is, 0, sizeof *is);
  strcpy(is->name, "stand-in");
  is->major = 8;
  is->warpSize = 32;
  is->multiProcessorCount = 108;
  is->maxThreadsPerBlock = is->maxThreadsDim[0] = is->maxThreadsDim[1] = 1024;
  is->maxThreadsDim[2] = 64;
  is->maxThreadsPerMultiProcessor = 2048;
  is->maxBlocksPerMultiProcessor = 32;
  is->maxGridSize[0] = 2147483647;
  is->maxGridSize[1] = is->maxGridSize[2] = 65535;
  is->totalGlobalMem = 8ull << 30;
  is->sharedMemPerBlock = 49152;
  is->sharedMemPerBlockOptin = 166912;
  is->sharedMemPerMultiprocessor = 167936;
  is->regsPerBlock = is->regsPerMultiprocessor = 65536;
  is->l2CacheSize = 40 << 20;
  is->textureAlignment = 512;
  DONE;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = 108; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 8; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 166912; break;
    default: *value = 1;
  }
  DONE;
}

// memory
cudaError_t cudaMalloc(void** made, size_t size) {
  *made = aligned_alloc(512, (size + 1024) / 512 * 512);
  memset(*made, 0, size);
  DONE;
}
cudaError_t cudaMallocAsync(void** made, size_t size, cudaStream_t) { return cudaMalloc(made, size); }
cudaError_t cudaMallocHost(void** made, size_t size) { return cudaMalloc(made, size); }
cudaError_t cudaHostAlloc(void** made, size_t size, unsigned) { return cudaMalloc(made, size); }
cudaError_t cudaFree(void* memory) { free(memory); DONE; }
cudaError_t cudaFreeAsync(void* memory, cudaStream_t) { free(memory); DONE; }
cudaError_t cudaFreeHost(void* memory) { free(memory); DONE; }
cudaError_t cudaMemGetInfo(size_t* spare, size_t* total) { *spare = *total = 8ull << 30; DONE; }
cudaError_t cudaMemset(void* to, int value, size_t size) { memset(to, value, size); DONE; }
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t) { memset(to, value, size); DONE; }
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) { memcpy(to, from, size); DONE; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t) {
  memcpy(to, from, size);
  DONE;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* is, const void* memory) {
  memset(is, 0, sizeof *is);
  is->type = cudaMemoryTypeDevice;
  is->devicePointer = const_cast<void*>(memory);
  DONE;
}
cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static char zeros[1 << 20];
  *address = zeros;
  DONE;
}

// streams, events, kernels
MAKE(cudaStreamCreate, cudaStream_t)
MAKE(cudaStreamCreateWithFlags, cudaStream_t, unsigned)
MAKE(cudaStreamCreateWithPriority, cudaStream_t, unsigned, int)
MAKE(cudaEventCreate, cudaEvent_t)
MAKE(cudaEventCreateWithFlags, cudaEvent_t, unsigned)
cudaError_t cudaEventElapsedTime(float* time, cudaEvent_t, cudaEvent_t) { *time = 1; DONE; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  DONE;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*,
                                     cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  DONE;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* is, const void*) {
  memset(is, 0, sizeof *is);
  is->maxThreadsPerBlock = 1024;
  is->numRegs = 32;
  is->binaryVersion = is->ptxVersion = 80;
  DONE;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int, size_t) { *count = 1; DONE; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) {
  *count = 1;
  DONE;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = *block = dim3{1, 1, 1};
  *shared = 0;
  *(void**)stream = nullptr;
  DONE;
}
void** __cudaRegisterFatBinary(void*) {
  static void* binary;
  return &binary;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** found, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *found = nullptr;
  if (result) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaErrorNotSupported;
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheStandIn"; }

// libraries: something to hold
int cublasCreate_v2(void** made) { *made = handle; return 0; }
int cublasLtCreate(void** made) { *made = handle; return 0; }
int cudnnCreate(void** made) { *made = handle; return 0; }
int cusparseCreate(void** made) { *made = handle; return 0; }
int cusolverDnCreate(void** made) { *made = handle; return 0; }
}
