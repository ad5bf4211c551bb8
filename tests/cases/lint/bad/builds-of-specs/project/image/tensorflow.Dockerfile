FROM --platform=linux/amd64 tensorflow/tensorflow:2.19.0-jupyter AS notebook
RUN pip install pandas
FROM notebook
