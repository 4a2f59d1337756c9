/* The one function of bcryptprimitives.dll that Rust's standard library calls. Wine has that library only since version 9. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG length); /* RtlGenRandom, of advapi32 */

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE buffer, SIZE_T length) {
  while (length > 0) {
    ULONG part = length > 1 << 20 ? 1 << 20 : (ULONG)length;
    if (!SystemFunction036(buffer, part)) return FALSE;
    buffer += part;
    length -= part;
  }
  return TRUE;
}
