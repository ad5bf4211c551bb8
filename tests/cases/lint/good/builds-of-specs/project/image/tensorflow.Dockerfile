FROM tensorflow/tensorflow:2.19.0
RUN pip install 'tensorflow[and-cuda]==2.19.0'
