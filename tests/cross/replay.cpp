// Run the calls that record.py wrote and compare what the kernels write: replay FILE
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "interface.h"

extern "C" {
#define DECLARE(name, Arguments) int64_t statetrack_##name(const void*);
KERNELS(DECLARE)
}

static void read(std::FILE* file, void* to, size_t size) {
  if (std::fread(to, 1, size, file) != size) std::printf("the record ends early\n"), std::exit(1);
}

int main(int, char** arguments) {
#define ENTRY(name, Arguments) {#name, statetrack_##name},
  const std::map<std::string, int64_t (*)(const void*)> kernels{KERNELS(ENTRY)};
  std::FILE* file = std::fopen(arguments[1], "rb");
  struct { char kernel[32]; int64_t blocks, links; } head;
  int wrong = 0, calls = 0;
  for (; file && std::fread(&head, sizeof head, 1, file); ++calls) {
    std::vector<std::vector<char>> before(head.blocks), after(head.blocks);
    for (int64_t i = 0; i < head.blocks; ++i) {
      int64_t size;
      read(file, &size, sizeof size);
      before[i].resize(size), after[i].resize(size);
      read(file, before[i].data(), size), read(file, after[i].data(), size);
    }
    size_t tables = 1;  // the blocks that hold pointers come first: no numbers to compare
    for (int64_t i = 0; i < head.links; ++i) {
      int64_t link[3];  // block, offset, the block pointed to
      read(file, link, sizeof link);
      char* target = before[link[2]].data();
      std::memcpy(before[link[0]].data() + link[1], &target, sizeof target);
      if (static_cast<size_t>(link[0]) >= tables) tables = link[0] + 1;
    }
    wrong += kernels.at(head.kernel)(before[0].data()) != 0;
    float worst = 0;
    for (size_t b = tables; b < before.size(); ++b) {
      const size_t count = before[b].size() / 4;
      std::vector<float> got(count), expected(count);
      std::memcpy(got.data(), before[b].data(), count * 4);
      std::memcpy(expected.data(), after[b].data(), count * 4);
      float largest = 0;
      for (float x : expected) largest = std::fmax(largest, std::fabs(x));
      for (size_t i = 0; i < count; ++i)
        if (std::memcmp(&got[i], &expected[i], 4)) {
          const float error = std::fabs(got[i] - expected[i]) / largest;
          worst = error > worst || error != error ? error : worst;
        }
    }
    wrong += !(worst < 1e-5f);
    std::printf("%-24s worst error %.1e of the largest number\n", head.kernel, worst);
  }
  std::printf("%d calls, %d wrong\n", calls, wrong);
  return wrong || !calls;
}
