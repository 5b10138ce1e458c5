"""Compiles the CUDA kernels with NVRTC, which needs no GPU, and looks at what comes out.

kernels.py           registers, spills and widest accesses of every kernel on every architecture; fails on a spill,
                     on a missing 128-bit access, and if a .ptx file is not what the sources make
kernels.py --write   writes kernels/cuda/prebuilt.ptx (and product.ptx of gpu-check), for machines without NVRTC
"""

import argparse
import ctypes
import re
import sys
from pathlib import Path

from blake3 import blake3

CUDA = Path(__file__).resolve().parent.parent / "kernels" / "cuda"
# In the order of kernels/src/cuda/source.rs.
SOURCES = ("abi.cuh", "copy.cu", "blake3.cu")
# What is prebuilt, and of which sources.
PREBUILT = {CUDA / "prebuilt.ptx": SOURCES, CUDA / "product.ptx": ("product.cu",)}
PTX_ARCH = "compute_80"
# Drivers refuse PTX of a newer version than their own, and NVRTC writes its own. The kernels use nothing that the first
# version with compute_80 has not: the assembler of CUDA 12.0 takes them as this.
PTX_VERSION = "7.0"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
OPTIONS = ("--std=c++17",)
# Kernels that move or hash whole pages: their aligned paths must use 128-bit accesses.
LOADS = {
    "tender_gather": "ld.global.cs.v4.u32",
    "tender_scatter": "ld.global.cs.v4.u32",
    "tender_gather_small": "ld.global.cs.v4.u32",
    "tender_scatter_small": "ld.global.cs.v4.u32",
    "tender_blake3_groups": "ld.global.ca.v4.u32",
    "tender_blake3_roots": None,
}


class Nvrtc:
    """The compiler's library, from the wheel in this environment."""

    def __init__(self):
        import nvidia

        places = [Path(root) / "cuda_nvrtc" / "lib" / "libnvrtc.so.12" for root in nvidia.__path__]
        found = next((place for place in places if place.exists()), None)
        if found is None:
            sys.exit("NVRTC 12 is not installed in this environment: run `make setup`")
        self.library = ctypes.CDLL(str(found))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def compile(self, source, architecture):
        """What `source` compiles to, PTX for a compute_ and a cubin for an sm_ architecture, and the compiler's log."""
        program = ctypes.c_void_p()
        self._call("CreateProgram", ctypes.byref(program), source, b"tender.cu", 0, None, None)
        options = [f"--gpu-architecture={architecture}", *OPTIONS, "--ptxas-options=-v"]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = self.library.nvrtcCompileProgram(program, len(options), array)
        log = self._text(program, "ProgramLog").rstrip(b"\0").decode()
        if failed:
            sys.exit(f"{architecture}: the kernels do not compile\n{log}")
        out = self._text(program, "PTX" if architecture.startswith("compute") else "CUBIN")
        self._call("DestroyProgram", ctypes.byref(program))
        return out, log

    def _text(self, program, what):
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", program, text)
        return text.raw

    def _call(self, name, *arguments):
        result = getattr(self.library, f"nvrtc{name}")(*arguments)
        if result:
            sys.exit(f"nvrtc{name} failed with {result}")


def text_of(names):
    return b"".join((CUDA / name).read_bytes() for name in names)


def prebuilt(nvrtc, source):
    ptx, _ = nvrtc.compile(source, PTX_ARCH)
    lines = (line.rstrip() for line in ptx.rstrip(b"\0").decode().splitlines())
    # The compiler's own comments name its build; what matters is said here.
    body = "\n".join(line for line in lines if line and not line.startswith("//"))
    body = re.sub(r"^\.version .*$", f".version {PTX_VERSION}", body, count=1, flags=re.MULTILINE)
    return f"// source {blake3(source).hexdigest()}\n// NVRTC {nvrtc.version}, {PTX_ARCH}\n{body}\n"


def figures(log):
    """Kernel -> (registers, spilled bytes), from the log of the assembler."""
    found = {}
    for entry in log.split("Compiling entry function '")[1:]:
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill", entry)]
        registers = re.search(r"Used (\d+) registers", entry)
        found[entry.split("'")[0]] = (int(registers[1]), sum(spills))
    return found


def check(nvrtc, source):
    wrong = []
    print(f"{'kernel':<24}{'architecture':<14}{'registers':>9}{'spilled bytes':>15}")
    for architecture in ARCHITECTURES:
        _, log = nvrtc.compile(source, architecture)
        found = figures(log)
        if set(found) != set(LOADS):
            wrong.append(f"{architecture}: the log speaks of {sorted(found)}")
        for kernel, (registers, spilled) in sorted(found.items()):
            print(f"{kernel:<24}{architecture:<14}{registers:>9}{spilled:>15}")
            if spilled:
                wrong.append(f"{kernel} spills {spilled} bytes on {architecture}")
    ptx = prebuilt(nvrtc, source)
    bodies = {body.split("(")[0]: body for body in ptx.split(".visible .entry ")[1:]}
    for kernel, load in LOADS.items():
        stores = "st.global.cs.v4.u32" if load and ".cs." in load else None
        for access in filter(None, (load, stores)):
            if access not in bodies.get(kernel, ""):
                wrong.append(f"{kernel} has no {access}")
    for path, names in PREBUILT.items():
        if not path.exists() or path.read_text() != prebuilt(nvrtc, text_of(names)):
            wrong.append(f"{path.name} is not what the sources make: run scripts/kernels.py --write and commit it")
    return wrong


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write the .ptx files")
    write = arguments.parse_args().write
    nvrtc = Nvrtc()
    if write:
        for path, names in PREBUILT.items():
            path.write_text(prebuilt(nvrtc, text_of(names)))
        return
    wrong = check(nvrtc, text_of(SOURCES))
    sys.exit("\n".join(wrong) if wrong else None)


if __name__ == "__main__":
    main()
