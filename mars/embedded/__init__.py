"""The embedded toy world: problems, corpora, tokenizer, graders; imports nothing else of ours."""
