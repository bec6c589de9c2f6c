"""``df.write.format("logstore")`` and ``df.writeStream.format("logstore")``: rows become records of topics."""
