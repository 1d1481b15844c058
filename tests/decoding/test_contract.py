"""Hand-counted traces, where rows end, what is refused."""

from __future__ import annotations

import copy

import accelerate
import pytest
import torch

from mars.config import Decoding
from mars.decoding import DecodingError, Request, make_decoder
from mars.decoding.attention import Part, Window
from mars.decoding.backbone import Backbone

from .tiny_models import (
    END,
    MASK,
    POSITIONS,
    VOCABULARY,
    Scripted,
    byte_tokenizer,
    decode,
    make,
    outline,
    random_model,
)

SURE, UNSURE = 0.97, 0.6
SCRIPT_END, SCRIPT_MASK = 11, 10


def scripted(*steps: tuple[int, float], prompt: int = 2) -> Scripted:
    """Predicts ``steps`` one after the other from the last prompt token on."""
    return Scripted([(0, SURE)] * (prompt - 1) + list(steps))


def run(model, budget: int = 10, prompt: int = 2, **settings):
    request = Request((1,) * prompt, budget)
    maker = {"mask_id": SCRIPT_MASK, "end_ids": (SCRIPT_END,)}
    return decode([request], model, **(settings | maker))[0]


TRACE = [(2, UNSURE), (3, SURE), (4, UNSURE), (5, SURE), (6, SURE), (7, SURE), (11, SURE), (8, 1.0)]


@pytest.mark.parametrize("cache", ["cursor", "none"])
def test_trace_counted_by_hand(cache):
    model = scripted(*TRACE)
    found = run(model, decoder="mars", block_size=4, tau=0.95, cache=cache)
    # prefill: 2 (always), 3 (sure), 4 fails; then 4, 5, 6, 7; then end-of-turn, and not 8
    assert found.ids == [2, 3, 4, 5, 6, 7, 11]
    assert found.accepted == [2, 4, 1]
    assert (found.tokens, found.forwards, found.finish) == (7, 3, "end_of_turn")
    assert found.confidence == pytest.approx([UNSURE, SURE, UNSURE, SURE, SURE, SURE, SURE])
    widths = [width for _, width in model.windows]
    # the prompt and 3 masks; then 2 tokens and 3 masks; then 4 tokens and 3 masks
    assert widths == ([5, 5, 7] if cache == "cursor" else [5, 7, 11])


def test_trace_of_the_block_cache():
    model = scripted(*TRACE)
    found = run(model, decoder="mars", block_size=4, tau=0.95, cache="block", cache_block=3)
    # blocks of 3: [2 3|4], [5 6 7], [11 …]; the forward that writes a block drafts the next
    assert found.accepted == [2, 1, 3, 1]
    # prompt and 2 masks (the cut); block's 2 tokens, no mask; 3 written and 2 masks; 3 and 2
    assert [width for _, width in model.windows] == [4, 2, 5, 5]


def test_one_token_a_step_even_where_probabilities_are_one():
    model = scripted(*[(t, 1.0) for t in (2, 3, 4, 5, 11)])
    found = run(model, decoder="mars", block_size=4, tau=1.0)
    assert found.accepted == [1, 1, 1, 1, 1]
    assert [width for _, width in model.windows] == [2, 1, 1, 1, 1]
    assert run(model, decoder="mars", block_size=4, tau=0.9999).accepted == [4, 1]


def test_budget_cuts_a_draft():
    model = scripted(*[(2, 1.0)] * 9)
    found = run(model, budget=6, decoder="mars", block_size=4, tau=0.9)
    assert (found.accepted, found.finish) == ([4, 2], "budget")
    assert [width for _, width in model.windows] == [5, 5]  # no mask beyond the budget


def test_jacobi_trace():
    model = scripted((1, SURE), (1, SURE), (3, SURE), (4, SURE), (5, SURE), (11, SURE))
    found = run(model, decoder="jacobi", block_size=3)
    assert found.ids == [1, 1, 3, 4, 5, 11]
    # guesses start as the last prompt token, 1. [1 1|1 1] predicts 1 1 3: both guesses hold.
    # [3|1 1] predicts 4 5 11: neither does, and 5 11 are the next guesses.
    # [4|5 11] predicts 5 11 …: the guess 5 holds, and 11 ends the turn.
    assert found.accepted == [3, 1, 2]
    assert [width for _, width in model.windows] == [4, 3, 3]


def test_block_diffusion_trace():
    script = [(2, UNSURE), (3, SURE), (4, 0.55), (5, 0.7), (6, SURE), (11, UNSURE), (7, 0.9)]
    model = scripted(*script)
    found = run(model, decoder="block_diffusion", block_size=4, tau=0.95)
    assert found.ids == [2, 3, 4, 5, 6, 11]
    assert found.confidence == pytest.approx([UNSURE, SURE, 0.55, 0.7, SURE, UNSURE])
    assert found.finish == "end_of_turn"
    # first block, one a step: 3, 5, 2, 4. Second: 6 together with a 0 (where the script has run
    # out), then 7, then 11; the 7 and the 0 follow the end-of-turn and are dropped
    assert found.accepted == [1, 1, 1, 1, 1, 0, 1]
    # the prompt and a block; the block; the written block and the next one; that one
    assert [width for _, width in model.windows] == [6, 4, 4, 4, 8, 4, 4]


def test_mask_is_never_emitted():
    model = Scripted([(SCRIPT_MASK, 0.9)] * 9)
    for method in ("ar", "mars", "jacobi", "block_diffusion"):
        found = run(model, decoder=method)
        assert set(found.ids) == {0}
        assert set(found.confidence) == {1.0}  # of what is left without [MASK]


def test_nothing_is_kept_after_a_stop_sequence():
    tokenizer = byte_tokenizer()
    text = "good END bad"
    ids = tokenizer.encode(text)
    model = Scripted([(0, SURE)] + [(i, SURE) for i in ids], vocabulary=300)
    for decoder, size in (
        ("ar", 1),
        ("mars", 4),
        ("mars", 16),
        ("jacobi", 5),
        ("block_diffusion", 6),
    ):
        tau = 0.9 if decoder in ("mars", "block_diffusion") else 1.0
        (found,) = decode(
            [Request((1, 1), 12, stop=("never", "END"))],
            model,
            tokenizer,
            decoder=decoder,
            block_size=size,
            tau=tau,
            mask_id=299,
            end_ids=(298,),
        )
        assert tokenizer.decode(found.ids) == "good END", decoder
        assert found.finish == "stop"
        assert sum(found.accepted) == found.tokens == len(found.confidence)


def test_every_row_adds_up():
    requests = [Request((3, 4, 5) * n, 3 * n) for n in range(1, 8)]
    for method in (
        {"decoder": "ar"},
        {"decoder": "mars", "block_size": 4, "tau": 0.6},
        {"decoder": "mars", "block_size": 4, "tau": 0.6, "cache": "block", "cache_block": 5},
        {"decoder": "jacobi", "block_size": 4},
        {"decoder": "block_diffusion", "block_size": 4, "tau": 0.7},
    ):
        for request, g in zip(requests, decode(requests, **method), strict=True):
            assert sum(g.accepted) == g.tokens == len(g.confidence) <= request.max_new_tokens
            assert g.forwards == len(g.accepted)
            assert all(0 < c <= 1 for c in g.confidence)
            assert MASK not in g.ids
            assert END not in g.ids[:-1]
            ended = g.ids[-1] == END
            assert g.finish == ("end_of_turn" if ended else "budget")


@pytest.mark.parametrize("cache", ["cursor", "none", "block"])
def test_the_context_fills_up(cache):
    block = {"cache_block": 7} if cache == "block" else {}
    method = {
        "decoder": "mars",
        "block_size": 4,
        "tau": 0.6,
        "cache": cache,
        "end_ids": (),
        **block,
    }
    requests = [Request((5,) * n, 50) for n in (POSITIONS - 1, POSITIONS - 9, 3)]
    found = decode(requests, **method)
    assert [(g.tokens, g.finish) for g in found] == [(1, "context"), (9, "context"), (50, "budget")]
    exact = Request((5,) * (POSITIONS - 9), 9)
    assert decode([exact], **method)[0].finish == "budget"
    assert outline(decode(requests[2:], **method)) == outline(found[2:])


def test_block_diffusion_needs_room_for_whole_blocks():
    method = {"decoder": "block_diffusion", "block_size": 4, "end_ids": ()}
    (found,) = decode([Request((5,) * (POSITIONS - 10), 50)], **method)
    assert (found.tokens, found.finish) == (8, "context")
    with pytest.raises(DecodingError, match=r"request 0: .* room for a block of 4"):
        decode([Request((5,) * (POSITIONS - 3), 50)], **method)


def test_a_batch_of_none_is_empty():
    for decoder in ("ar", "block_diffusion"):
        assert decode([], decoder=decoder) == []


GOOD = Request((2, 3), 4)
BAD_REQUESTS = [
    (Request((), 4), r"request 1: the prompt is empty"),
    (Request((2,) * POSITIONS, 4), rf"request 1: a prompt of {POSITIONS} tokens .* at most"),
    (Request((2,), 0), r"request 1: max_new_tokens is 0"),
    (Request((2,), 4, stop=("",)), r"request 1: an empty stop sequence"),
    (Request((2,), 4, stop="abc"), r"request 1: stop is a text: give a tuple"),
    (Request((2,), 4, tau=0.0), r"request 1: tau is 0.0"),
    (Request((2,), 4, tau=1.5), r"request 1: tau is 1.5"),
]


@pytest.mark.parametrize(("request_", "message"), BAD_REQUESTS)
@pytest.mark.parametrize("decoder", ["mars", "block_diffusion"])
def test_bad_requests_are_named(request_, message, decoder):
    with pytest.raises(DecodingError, match=message):
        decode([GOOD, request_], decoder=decoder)


@pytest.mark.parametrize("decoder", ["ar", "jacobi"])
def test_a_threshold_needs_a_method_that_has_one(decoder):
    with pytest.raises(DecodingError, match="request 0: tau is"):
        decode([Request((2,), 4, tau=0.9)], decoder=decoder)
    with pytest.raises(DecodingError, match="no threshold"):
        make(decoder=decoder, tau=0.9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoder": "ar", "block_size": 4}, "block_size is 4, but ar"),
        ({"decoder": "mars", "cache": "block"}, "set cache_block"),
        ({"decoder": "mars", "cache_block": 4}, "cache_block is 4"),
        ({"decoder": "jacobi", "cache": "block", "cache_block": 4}, "no block cache"),
        ({"decoder": "jacobi", "temperature": 0.5}, "temperature: 0"),
        ({"decoder": "mars", "alignment": "own"}, "only block_diffusion"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(DecodingError, match=message):
        make(**settings)


def test_sliding_windows_are_refused():
    model = random_model(seed=7)
    model.config.layer_types = ["full_attention", "sliding_attention"]
    model.config.sliding_window = 8
    with pytest.raises(DecodingError, match="sliding window of 8"):
        Backbone(model)


def test_sampling_needs_no_generator_and_repeats():
    requests = [Request((2, 3), 12), Request((5,), 12)]
    method = {"decoder": "mars", "block_size": 4, "tau": 0.5, "temperature": 1.5}
    once = outline(decode(requests, **method))
    assert once == outline(decode(requests, **method))
    other = decode(requests, generator=torch.Generator().manual_seed(9), **method)
    assert once != outline(other)
    assert outline(decode(requests, **method | {"temperature": 0.0})) != once


def test_mask_and_end_of_turn_are_found_on_the_model():
    model, tokenizer = random_model(seed=8), byte_tokenizer()
    model.config.mask_token_id = MASK
    model.generation_config.eos_token_id = [END, 5]
    decoder = make_decoder(model, tokenizer, Decoding(decoder="ar"))
    assert decoder.mask_id == MASK
    assert decoder.end_ids == {END, 5, tokenizer.eos_token_id}


# ------------------------------------------------------------------------- models and requests


@pytest.mark.parametrize("token", [-1, VOCABULARY, 10**6])
def test_a_token_beyond_the_vocabulary_is_one_line(token):
    with pytest.raises(DecodingError, match=rf"request 1: token {token} is none of the model's 29"):
        decode([Request((3, 4), 2), Request((3, token, 5), 2)], decoder="ar")


@pytest.mark.parametrize(
    "settings", [{"cache": "cursor"}, {"cache": "none"}, {"cache": "block", "cache_block": 4}]
)
def test_a_model_whose_layers_are_dispatched_decodes_the_same(settings):
    """As accelerate spreads a model over GPUs; here every device is the CPU."""
    requests = [Request((3, 4, 5, 6, 7, 8, 9), 9), Request((5,), 12), Request((9, 8, 7), 4)]
    chosen = {"decoder": "mars", "block_size": 4, "tau": 0.3, **settings}
    plain = decode(requests, **chosen)
    model = copy.deepcopy(random_model())
    parts = ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "lm_head"]
    places = dict.fromkeys([*parts, "model.rotary_emb"], "cpu")
    spread = accelerate.dispatch_model(model, places, main_device="cpu", force_hooks=True)
    assert outline(decode(requests, spread, **chosen)) == outline(plain)


@pytest.mark.parametrize("decoder", ["mars", "block_diffusion"])
@pytest.mark.parametrize("cache", ["cursor", "none"])
def test_states_are_read_on_the_device_of_the_first_layers(decoder, cache, monkeypatch):
    """The last layers lie on a second device, "meta", which computes shapes alone.

    What comes back from there is made up here: zeros.
    """
    model = copy.deepcopy(random_model())
    places = dict.fromkeys(["model.embed_tokens", "model.rotary_emb", "model.layers.0"], "cpu")
    for part in ("model.layers.1", "model.norm", "lm_head"):
        model.get_submodule(part).to("meta")
        places[part] = "meta"
    accelerate.hooks.attach_align_device_hook_on_blocks(
        model,
        {part: torch.device(device) for part, device in places.items()},
        offload=dict.fromkeys(places, False),
        skip_keys=model._skip_keys_device_placement,
    )
    to, gather, came_back = torch.Tensor.to, torch.Tensor.gather, []

    def arrive(states, *words, **more):
        if states.is_meta and torch.device("cpu") in words:
            came_back.append(states.shape)
            return states.new_zeros(states.shape, device="cpu")
        return to(states, *words, **more)

    def gather_in_place(states, dim, index):
        assert states.device == index.device
        return gather(states, dim, index)

    monkeypatch.setattr(torch.Tensor, "to", arrive)
    monkeypatch.setattr(torch.Tensor, "gather", gather_in_place)
    requests = [Request((3, 4, 5, 6, 7, 8, 9), 9), Request((5,), 12)]
    found = decode(requests, model, decoder=decoder, block_size=4, tau=0.3, cache=cache)
    assert all(made.ids for made in found)
    assert came_back


def test_a_window_moves_whole():
    window = Window(
        2,
        3,
        torch.arange(4),
        parts=(Part(slice(0, 1), slice(0, 2), 5, torch.zeros(1), Window(1, 2, torch.arange(2))),),
    )
    moved = window.to("meta")
    assert moved.packed.is_meta
    assert moved.parts[0].mask.is_meta
    assert moved.parts[0].window.packed.is_meta
    assert (moved.rows, moved.parts[0].used, window.packed.is_meta) == (2, 5, False)
    assert Window(1, 1).to("meta") == Window(1, 1)
