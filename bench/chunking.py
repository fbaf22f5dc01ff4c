"""Our chunks compared with semchunk, counted in the packaged MiniLM's tokens: `python -m bench.chunking`.

Ten passages form a document. A good chunk keeps the limit and begins and ends at a sentence. Needs `pip install
semchunk`, which the package itself does not use.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from agentformer.embedders.sbert.embedder import SbertEmbedder
from agentformer.settings import Settings
from agentformer.text.splitting import sentence_spans, split
from bench.data import load

_LIMIT, _OVERLAP = 500, 50
Cut = Callable[[str], Sequence[tuple[int, int]]]


def main() -> int:
    try:
        import semchunk
    except ImportError:
        print("semchunk is not installed: pip install semchunk", file=sys.stderr)
        return 0
    embedder = SbertEmbedder.minilm("", Settings())
    peer = semchunk.chunkerify(lambda text: len(embedder.token_spans(text)), _LIMIT)
    passages = [row.text for name in ("norquad", "xquad/en") for row in load(name).corpus]
    texts = ["\n\n".join(passages[i : i + 10]) for i in range(0, len(passages), 10)]
    print("| cutter | chunks | end at a sentence | begin at a sentence | over the limit | seconds |")
    print("|---|---|---|---|---|---|")
    for name, cut in (
        ("ours", lambda text: split(text, embedder.token_spans(text), _LIMIT, _OVERLAP)),
        ("semchunk", lambda text: peer(text, overlap=_OVERLAP, offsets=True)[1]),
    ):
        print(f"| {name} | {' | '.join(_measure(texts, cut, embedder))} |")
    return 0


def _measure(texts: Sequence[str], cut: Cut, embedder: SbertEmbedder) -> list[str]:
    started = time.perf_counter()
    cuts = [[tuple(span) for span in cut(text)] for text in texts]
    seconds = time.perf_counter() - started
    ends = begins = borders = over = 0
    for text, spans in zip(texts, cuts, strict=True):
        sentences = sentence_spans(text)
        ends += sum(end in {s.end for s in sentences} for _, end in spans[:-1])
        begins += sum(start in {s.start for s in sentences} for start, _ in spans[1:])
        borders += len(spans) - 1
        over += sum(len(embedder.token_spans(text[start:end])) > _LIMIT for start, end in spans)
    chunks = sum(len(spans) for spans in cuts)
    return [str(chunks), f"{ends / borders:.3f}", f"{begins / borders:.3f}", str(over), f"{seconds:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
