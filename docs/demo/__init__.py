"""The main job on real data, from HTTP to Spark: what ``make demo`` runs. Nothing else imports this package."""
