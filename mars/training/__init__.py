"""Training: objectives, the trainer, a study's runs, and the pretraining of the toy bases."""
