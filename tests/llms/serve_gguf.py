"""Serves a GGUF file with llama.cpp until standard input ends; prints the address."""

from __future__ import annotations

import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = 0
params.n_ctx = 512
params.n_parallel = 1
params.n_gpu_layers = 0
params.warmup = False
params.use_jinja = True
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1
params.verbosity = -1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
