// A CUDA driver without a device: enough of libcuda for Triton's launcher, which starts nothing here. What a launch would have
// passed to the kernel is kept, so that two ways of launching can be compared.
#include <cuda.h>
#include <stdint.h>
#include <string.h>

static unsigned char kept[4096];
static int sizes[64], count;
static unsigned int shape[7];
static void *stream_of, *function_of;
static long calls;

void stub_expect(const int *given, int number) { memcpy(sizes, given, number * sizeof(int)); count = number; }
const unsigned char *stub_kept(void) { return kept; }
const unsigned int *stub_shape(void) { return shape; }
void *stub_stream(void) { return stream_of; }
void *stub_function(void) { return function_of; }
long stub_calls(void) { return calls; }

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
  (void)extra;
  ++calls;
  const unsigned int now[7] = {config->gridDimX,  config->gridDimY,  config->gridDimZ,      config->blockDimX,
                               config->blockDimY, config->blockDimZ, config->sharedMemBytes};
  memcpy(shape, now, sizeof now);
  stream_of = config->hStream;
  function_of = function;
  for (int i = 0, at = 0; i < count; at += sizes[i++]) memcpy(kept + at, params[i], sizes[i]);
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute what, CUdeviceptr pointer) { (void)what; *(CUdeviceptr *)data = pointer; return 0; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)1; return 0; }
CUresult cuCtxSetCurrent(CUcontext context) { (void)context; return 0; }
CUresult cuDeviceGet(CUdevice *device, int number) { *device = number; return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { (void)device; *context = (CUcontext)1; return 0; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return 0; }
CUresult cuGetErrorString(CUresult error, const char **text) { (void)error; *text = "no device"; return 0; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice device) { (void)what; (void)device; *value = 232448; return 0; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { (void)image; *module = (CUmodule)2; return 0; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  (void)module;
  uintptr_t hash = 5381;
  while (*name) hash = hash * 33 + (unsigned char)*name++;
  *function = (CUfunction)hash;
  return 0;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute what, CUfunction function) {
  (void)function;
  *value = what == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return 0;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute what, int value) { (void)function; (void)what; (void)value; return 0; }
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { (void)function; (void)config; return 0; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { (void)limit; (void)value; return 0; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { (void)limit; *value = 0; return 0; }
CUresult cuOccupancyMaxActiveClusters(int *number, CUfunction function, const CUlaunchConfig *config) { (void)function; (void)config; *number = 1; return 0; }
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *extents,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  (void)interleave; (void)promotion; (void)steps;
  uint64_t *words = (uint64_t *)map;
  memset(map, 0, sizeof *map);
  words[0] = (uint64_t)(uintptr_t)address; words[1] = rank; words[2] = extents[0]; words[3] = extents[1];
  words[4] = strides[0]; words[5] = box[0]; words[6] = box[1]; words[7] = swizzle; words[8] = type; words[9] = fill;
  return 0;
}
