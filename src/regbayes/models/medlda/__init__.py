"""MedLDA: topics of documents that predict their responses with a margin. docs/math.md section 5."""
