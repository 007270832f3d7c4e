"""Sizes of models as numbers worked out by hand; tests/stages/test_model_size.py compares them with transformers."""

import dataclasses

from ouroboros.pipeline.check.model_size import Layer, Size

QWEN2 = {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
         "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
         "max_position_embeddings": 32768}
QWEN2_7B = {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064}

# 10 words, 4 wide, 2 layers, 2 query heads on 1 key/value head of width 2, MLP 8 wide, untied: a layer has 4 x (2 x 4 +
# 2 x 2) = 48 in its attention, 3 x 4 x 8 = 96 in its MLP, 8 in two norms; 2 x 152, last norm 4, twice 40
TOY = Size(parameters=388, trained=388, critic=388 - 40 + 5, embedding=40, tied=False, largest=40, gathered=40,
           vocabulary=10, width=4, heads=2, key_value_heads=1, head_width=2, value_width=4, layers=((2, Layer(8, 16)),))
TIED = dataclasses.replace(TOY, parameters=348, trained=348, critic=348 + 5, tied=True)
# Qwen2.5-0.5B, heads 64 wide: q 896 x 896 + 896 = 803,712; k and v 896 x 128 + 128 = 114,816 each; o 802,816;
# MLP 3 x 896 x 4864 = 13,074,432; norms 1,792, biases 1,152. Embedding 151,936 x 896 = 136,134,656, once; last norm 896
P = 136_134_656 + 24 * 14_912_384 + 896
SMALL = Size(parameters=P, trained=P, critic=P + 897, embedding=136_134_656, tied=True, largest=136_134_656,
             gathered=136_134_656, vocabulary=151_936, width=896, heads=14, key_value_heads=2, head_width=64,
             value_width=896, layers=((24, Layer(1792, 9728, tiled=9728)),), linear=24 * (14_912_384 - 1792 - 1152),
             matrix=896 * 4864)
# Qwen2.5-7B, heads 128 wide: q 12,848,640; k and v 1,835,520 each; o 12,845,056; MLP 203,685,888; norms 7,168;
# embedding and head 544,997,376 each; last norm 3,584
LARGE = Size(parameters=7_615_616_512, trained=7_615_616_512, critic=7_615_616_512 - 544_997_376 + 3585,
             embedding=544_997_376, tied=False, largest=544_997_376, gathered=544_997_376, vocabulary=152_064,
             width=3584, heads=28, key_value_heads=4, head_width=128, value_width=3584,
             layers=((28, Layer(7168, 37888, tiled=37888)),), linear=28 * 233_046_016, matrix=3584 * 18944)
CREATED = dataclasses.replace(TIED, parameters=200_000, trained=200_000)  # about the default recipe's


def answered(models: list[str]) -> dict:
    """What the preview process finds in a run without data whose models are SMALL, or CREATED."""
    return {"problems": [], "warnings": [], "unjudged": [], "facts": [], "sizes": {
        asked: dataclasses.asdict(CREATED if asked.startswith("[{") else SMALL) for asked in models}}
